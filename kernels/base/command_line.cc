#include "kernels/base/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace bitshard {
namespace {

std::string Underscored(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

// "--kv-cache-dtype"
std::string AsTyped(absl::string_view name) {
  return absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}}));
}

absl::Status CheckValue(absl::CommandLineFlag& flag, const std::string& value) {
  std::string why;
  if (flag.ParseFrom(value, &why)) return absl::OkStatus();
  const std::string what = absl::StrCat(AsTyped(flag.Name()), "=", value, ": ");
  double number = 0;
  if (flag.IsOfType<absl::Duration>()) {
    const std::string example = absl::SimpleAtod(value, &number) ? value + "s" : "30s";
    return absl::InvalidArgumentError(
        absl::StrCat(what, "a time has a unit: write ", example, " (or ms, m, h)"));
  }
  if (flag.IsOfType<bool>())
    return absl::InvalidArgumentError(absl::StrCat(what, "must be true or false"));
  if (flag.IsOfType<double>())
    return absl::InvalidArgumentError(absl::StrCat(what, "is no number"));
  if (flag.IsOfType<int32_t>() || flag.IsOfType<int64_t>())
    return absl::InvalidArgumentError(absl::StrCat(what, "is no whole number, or too large"));
  return absl::InvalidArgumentError(absl::StrCat(what, why.empty() ? "not allowed" : why));
}

// In lines of at most 100 columns that begin with `indent` spaces.
std::string Wrapped(absl::string_view text, size_t indent) {
  std::string out;
  size_t column = 0;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (column > 0 && column + 1 + word.size() > 100) {
      out += '\n';
      column = 0;
    }
    out += std::string(column == 0 ? indent : 1, ' ');
    absl::StrAppend(&out, word);
    column += (column == 0 ? indent : 1) + word.size();
  }
  return out + "\n";
}

}  // namespace

std::string HelpText(const ProgramHelp& help) {
  std::string out = absl::StrCat(help.name, ": ", help.about, "\n\nFlags, with their defaults:\n");
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), help.flags_file)) flags.emplace(name, flag);
  }
  for (const auto& [name, flag] : flags) {
    absl::StrAppend(&out, "  ", AsTyped(name), "=", flag->DefaultValue(), "\n",
                    Wrapped(flag->Help(), 6));
  }
  return out;
}

void AnswerHelp(const ProgramHelp& help, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word == "--") return;
    if (!absl::ConsumePrefix(&word, "-")) continue;
    const bool is_long = absl::ConsumePrefix(&word, "-");
    const bool wants_help = word == "help" || word == "helpfull" || (word == "h" && !is_long);
    if (!wants_help && word != "version") continue;
    std::fputs(wants_help ? HelpText(help).c_str()
                          : absl::StrCat(help.name, " ", help.version, "\n").c_str(),
               stdout);
    std::exit(EXIT_SUCCESS);
  }
}

absl::Status CheckFlags(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word == "--") break;
    if (word.size() < 2 || word[0] != '-') continue;
    word.remove_prefix(absl::StartsWith(word, "--") ? 2 : 1);
    const size_t equals = word.find('=');
    const bool has_value = equals != absl::string_view::npos;
    const std::string name = Underscored(word.substr(0, equals));
    // These change what other flags mean: Abseil knows.
    if (name == "flagfile" || name == "undefok" || name == "fromenv" || name == "tryfromenv")
      return absl::OkStatus();
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    absl::string_view positive = name;
    if (flag == nullptr && !has_value && absl::ConsumePrefix(&positive, "no")) {
      flag = absl::FindCommandLineFlag(positive);
      if (flag != nullptr && flag->IsOfType<bool>()) continue;
      flag = nullptr;
    }
    if (flag == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("there is no flag ", AsTyped(name)));
    std::string value;
    if (has_value) {
      value = std::string(word.substr(equals + 1));
    } else if (!flag->IsOfType<bool>()) {
      if (i + 1 == argc)
        return absl::InvalidArgumentError(absl::StrCat(AsTyped(name), " needs a value"));
      value = argv[++i];
    } else {
      continue;
    }
    if (const absl::Status status = CheckValue(*flag, value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> ParseCommandLine(const std::string& program, int argc, char** argv) {
  if (const absl::Status status = CheckFlags(argc, argv); !status.ok()) {
    std::fprintf(stderr, "%s: %s\nTry: %s --help\n", program.c_str(),
                 std::string(status.message()).c_str(), program.c_str());
    std::exit(kExitBadCommandLine);
  }
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) break;
    if (argv[i][0] != '-' || argv[i][1] == 0) continue;
    char* const name = argv[i] + (argv[i][1] == '-' ? 2 : 1);
    std::replace(name, name + std::strcspn(name, "="), '-', '_');
  }
  const std::vector<char*> left = absl::ParseCommandLine(argc, argv);
  return std::vector<std::string>(left.begin() + 1, left.end());
}

}  // namespace bitshard
