// bitshard complete: one prompt to a running service, the answer streamed.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "coordinator/tools/client.h"
#include "coordinator/tools/verb.h"

namespace bitshard {
namespace {

int Run(const std::vector<std::string>& args) {
  if (args.size() != 1)
    return UsageError("complete",
                      "needs exactly one prompt (quote it), or - to read it from stdin");
  std::string prompt = args[0];
  if (prompt == "-")
    prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  const std::string what = args[0] == "-" ? "standard input" : "the prompt";
  if (const absl::Status status = CheckUtf8(what, prompt); !status.ok())
    return UsageError("complete", std::string(status.message()));
  v1::GenerateRequest request;
  request.set_text(prompt);
  if (const absl::Status status = ApplyCallFlags(&request); !status.ok()) {
    return UsageError("complete", std::string(status.message()));
  }
  const auto stub = ConnectToService();
  const auto answer = StreamAnswer(*stub, request);
  if (!answer.ok()) {
    std::fprintf(stderr, "bitshard complete: %s\n", Describe(answer.status()).c_str());
    return ExitCode(answer.status());
  }
  return 0;
}

const RegisterVerb kRegistered({
    .name = "complete",
    .summary = "continue a prompt with a running service",
    .help = "bitshard complete PROMPT [--flags]      PROMPT may be - for standard input\n\n"
            "Sends the prompt as it is (no chat template) and streams the continuation to stdout; "
            "figures go to stderr.\n\n" +
            CallFlagsHelp() +
            "\nExamples:\n"
            "  bitshard complete \"The capital of France is\" --max-tokens=16\n"
            "  git diff | bitshard complete - --stop=\"###\"\n",
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
