#include "coordinator/tools/program_flags.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "kernels/base/command_line.h"

namespace bitshard {
namespace {

const ProgramFlag* Find(const std::vector<ProgramFlag>& list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [name](const ProgramFlag& f) { return f.name == name; });
  return found == list.end() ? nullptr : &*found;
}

// Of a word "--name" or "--name=value" that no flag of ours is, `next` behind it; "" when no other
// program has it either.
std::string Hint(absl::string_view word, absl::string_view next) {
  const size_t equals = word.find('=');
  std::string name = absl::StrReplaceAll(word.substr(2, equals - 2), {{"-", "_"}});
  const std::string shown = absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}}));
  if (absl::FindCommandLineFlag(name) != nullptr) return "";
  const auto find = [&name] {
    return std::pair(Find(CoordinatorFlags(), name), Find(WorkerFlags(), name));
  };
  auto [coordinator, worker] = find();
  if (coordinator == nullptr && worker == nullptr && absl::StartsWith(name, "no")) {
    name.erase(0, 2);
    std::tie(coordinator, worker) = find();
  }
  if (coordinator == nullptr && worker == nullptr) return "";
  std::string flag = shown;
  if (equals != absl::string_view::npos) {
    absl::StrAppend(&flag, word.substr(equals));
  } else if ((coordinator != nullptr ? coordinator : worker)->type != "bool") {
    absl::StrAppend(&flag, "=", next);
  }
  const std::string of_coordinator = "--coordinator-flags=" + flag,
                    of_worker = "--worker-flags=" + flag;
  if (worker == nullptr)
    return absl::StrCat(shown, " is a flag of the coordinator: ", of_coordinator);
  if (coordinator == nullptr) return absl::StrCat(shown, " is a flag of the worker: ", of_worker);
  return absl::StrCat(shown, " is a flag of the coordinator and of the worker: ", of_coordinator,
                      " or ", of_worker);
}

}  // namespace

std::string HintOfProgramFlag(int argc, const char* const* argv) {
  if (CheckFlags(argc, argv).ok()) return "";
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word == "--") break;
    if (!absl::StartsWith(word, "--")) continue;
    const std::string hint = Hint(word, i + 1 < argc ? argv[i + 1] : "");
    if (!hint.empty()) return hint;
  }
  return "";
}

}  // namespace bitshard
