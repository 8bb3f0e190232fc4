// bitshard chat: a conversation with a running service through the model's chat template.
#include <cstdio>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/flags/flag.h"

#include "coordinator/tools/client.h"
#include "coordinator/tools/verb.h"

ABSL_FLAG(std::string, once, "", "ask this one question, print the answer, end");
ABSL_FLAG(std::string, system, "", "system message; empty = the template's own");

namespace bitshard {
namespace {

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// Asks with the conversation so far; the answer joins it. Returns the exit code.
int Ask(v1::Inference::Stub& stub, v1::GenerateRequest* request, const std::string& question) {
  if (const absl::Status status = CheckUtf8("the question", question); !status.ok())
    return UsageError("chat", std::string(status.message()));
  AddMessage(request->mutable_chat(), "user", question);
  const auto answer = StreamAnswer(stub, *request);
  if (!answer.ok()) {
    request->mutable_chat()->mutable_messages()->RemoveLast();
    if (absl::IsCancelled(answer.status())) return ExitCode(answer.status());
    std::fprintf(stderr, "bitshard chat: %s\n", Describe(answer.status()).c_str());
    return ExitCode(answer.status());
  }
  AddMessage(request->mutable_chat(), "assistant", answer->text);
  return 0;
}

int Run(const std::vector<std::string>& args) {
  // `--once "question"` and `--once=question` both work: the former leaves the question among the
  // arguments.
  std::string once = absl::GetFlag(FLAGS_once);
  if (args.size() == 1 && once.empty()) once = args[0];
  if (args.size() > 1) return UsageError("chat", "takes no arguments but one question (quote it)");
  if (args.size() == 1 && once.empty()) return UsageError("chat", "the question is empty");
  v1::GenerateRequest request;
  if (const absl::Status status = ApplyCallFlags(&request); !status.ok()) {
    return UsageError("chat", std::string(status.message()));
  }
  const std::string system = absl::GetFlag(FLAGS_system);
  if (const absl::Status status = CheckUtf8("--system", system); !status.ok())
    return UsageError("chat", std::string(status.message()));
  if (!system.empty()) AddMessage(request.mutable_chat(), "system", system);
  const auto stub = ConnectToService();
  if (!once.empty()) return Ask(*stub, &request, once);

  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) std::fprintf(stderr, "Ctrl-C stops an answer, Ctrl-D ends.\n");
  int code = 0;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    std::string line;
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    code = Ask(*stub, &request, line);
  }
  return code;
}

const RegisterVerb kRegistered({
    .name = "chat",
    .summary = "talk to a running service",
    .help = "bitshard chat [QUESTION] [--flags]\n\n"
            "With a question: asks it, streams the answer, ends. Without: a conversation; each "
            "line is a message, the whole\n"
            "history goes along. The model's own chat template makes the prompt.\n\n"
            "  --system=TEXT         system message (the template's own)\n" +
            CallFlagsHelp() +
            "\nExamples:\n"
            "  bitshard chat \"Name three primary colours.\"\n"
            "  bitshard chat --system=\"You are terse.\" --temperature=0.7 --seed=1\n",
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
