// The verbs of the `bitshard` command: one file each in this folder, registered before main.
#pragma once

#include <string>
#include <vector>

namespace bitshard {

struct Verb {
  std::string name;              // "serve"
  std::string summary;           // one line for `bitshard --help`
  std::string help;              // the whole page of `bitshard VERB --help`
  bool starts_programs = false;  // takes --coordinator-flags and --worker-flags
  // `args`: what is left after the verb's name and the flags. The return value is the exit code: 0,
  // 1 for a failure, 2 for wrong usage.
  int (*run)(const std::vector<std::string>& args) = nullptr;
};

struct RegisterVerb {
  explicit RegisterVerb(Verb verb);
};

// Null when there is none.
const Verb* FindVerb(const std::string& name);

// By name.
std::vector<const Verb*> AllVerbs();

// Prints "bitshard VERB: <message>" and how to get help; returns 2.
int UsageError(const std::string& verb, const std::string& message);

}  // namespace bitshard
