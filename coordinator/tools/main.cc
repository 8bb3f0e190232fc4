// bitshard: the command for people. `bitshard VERB [arguments] [--flags]`.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coordinator/tools/program_flags.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/command_line.h"
#include "proto/version.h"

namespace {

// In the design, not built yet.
constexpr const char* kPlanned[] = {"plan", "quantize", "compare"};

void PrintOverview(std::FILE* out) {
  std::fprintf(
      out,
      "bitshard: low-bit language models, sharded over worker processes, served over gRPC\n\n"
      "usage: bitshard VERB [arguments] [--flags]      bitshard VERB --help explains a verb\n\n");
  for (const bitshard::Verb* verb : bitshard::AllVerbs()) {
    std::fprintf(out, "  %-10s %s\n", verb->name.c_str(), verb->summary.c_str());
  }
  std::fprintf(
      out,
      "\nFirst steps:\n"
      "  bitshard inspect model.gguf             what is in the file, and how it would be sharded\n"
      "  bitshard serve model.gguf --workers=2   a coordinator and two workers on this machine\n"
      "  bitshard chat                           talk to it (in another terminal)\n");
}

int UnknownVerb(const std::string& word) {
  const bool planned =
      std::find(std::begin(kPlanned), std::end(kPlanned), word) != std::end(kPlanned);
  std::string known;
  for (const bitshard::Verb* v : bitshard::AllVerbs()) absl::StrAppend(&known, " ", v->name);
  std::fprintf(stderr, "bitshard: %s \"%s\"; there is:%s\n", planned ? "not built yet:" : "no verb",
               word.c_str(), known.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto is_help = [](const std::string& word) {
    return word == "--help" || word == "-h" || word == "-help";
  };
  if (!words.empty() && (words[0] == "--version" || words[0] == "version")) {
    std::printf("bitshard %s\n", bitshard::kBuildVersion);
    return 0;
  }
  const bool help = std::any_of(words.begin(), words.end(), is_help);
  if (words.empty() || words[0].empty() || words[0][0] == '-' || words[0] == "help") {
    if (words.size() > 1 && words[0] == "help") {
      if (const bitshard::Verb* verb = bitshard::FindVerb(words[1])) {
        std::printf("%s", verb->help.c_str());
        return 0;
      }
      if (words[1][0] != '-') return UnknownVerb(words[1]);
    }
    const bool asked = help || (!words.empty() && words[0] == "help");
    PrintOverview(asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  const bitshard::Verb* verb = bitshard::FindVerb(words[0]);
  if (verb == nullptr) return UnknownVerb(words[0]);
  if (help) {
    std::printf("%s", verb->help.c_str());
    return 0;
  }
  if (verb->starts_programs) {
    const std::string hint = bitshard::HintOfProgramFlag(argc - 1, argv + 1);
    if (!hint.empty()) return bitshard::UsageError(verb->name, hint);
  }
  return verb->run(bitshard::ParseCommandLine("bitshard " + verb->name, argc - 1,
                                              argv + 1));  // the verb takes the program's place
}
