// Abseil flags with the spelling that people type: --kv-cache-dtype=f32 is the flag kv_cache_dtype.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace bitshard {

// The exit code for flags that do not exist or cannot have their value.
inline constexpr int kExitBadCommandLine = 2;
// Of a worker that its coordinator does not want: a wrong token, another build.
inline constexpr int kExitTurnedAway = 5;

struct ProgramHelp {
  std::string name;  // "bitshard-worker"
  std::string version;
  std::string about;       // what it is, how it is called, its exit codes; lines of at most 100
  std::string flags_file;  // of the source that defines its flags, the end: "worker/options.cc"
};

// Of --help: about, then each flag as people type it, with its default.
std::string HelpText(const ProgramHelp& help);

// Where the arguments before "--" ask for --help (-h) or --version: prints it and ends the program
// with 0.
void AnswerHelp(const ProgramHelp& help, int argc, const char* const* argv);

// Turns dashes in flag names (not in values, not after "--") into underscores, then lets Abseil
// parse. Returns the arguments that are no flags, without the program's name. An unknown flag or a
// bad value ends the program with kExitBadCommandLine, after a line on stderr that begins with
// `program` ("bitshard serve") and one that names its --help.
std::vector<std::string> ParseCommandLine(const std::string& program, int argc, char** argv);

// What ParseCommandLine would end the program for; sets flags. For one who wants to go on.
// `argv[0]` is not looked at. INVALID_ARGUMENT names the first bad flag, as people write it.
absl::Status CheckFlags(int argc, const char* const* argv);

}  // namespace bitshard
