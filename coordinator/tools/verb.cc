#include "coordinator/tools/verb.h"

#include <cstdio>
#include <map>
#include <utility>

namespace bitshard {
namespace {

std::map<std::string, Verb>& Verbs() {
  static auto* verbs = new std::map<std::string, Verb>;  // filled before main, read-only afterwards
  return *verbs;
}

}  // namespace

RegisterVerb::RegisterVerb(Verb verb) {
  std::string name = verb.name;
  Verbs().emplace(std::move(name), std::move(verb));
}

const Verb* FindVerb(const std::string& name) {
  const auto found = Verbs().find(name);
  return found == Verbs().end() ? nullptr : &found->second;
}

std::vector<const Verb*> AllVerbs() {
  std::vector<const Verb*> all;
  for (const auto& [name, verb] : Verbs()) all.push_back(&verb);
  return all;
}

int UsageError(const std::string& verb, const std::string& message) {
  std::fprintf(stderr, "bitshard %s: %s\nTry: bitshard %s --help\n", verb.c_str(), message.c_str(),
               verb.c_str());
  return 2;
}

}  // namespace bitshard
