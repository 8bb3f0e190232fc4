// What the tests of GrammarCompiler and CompileGuard have in common.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "coordinator/grammar/grammar_compiler.h"
#include "tests/support/await.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard {

// A guard process; with `hang` one that never answers.
inline std::vector<std::string> GuardCommand(bool hang = false) {
  std::vector<std::string> command = {absl::StrCat(std::getenv("TEST_SRCDIR"), "/",
                                                   std::getenv("TEST_WORKSPACE"),
                                                   "/tests/coordinator/grammar/guard_main")};
  if (hang) command.push_back("--hang");
  return command;
}

inline const VocabularyBytes& Vocabulary() {
  static const VocabularyBytes& vocabulary =
      *new VocabularyBytes(VocabularyBytes::Of(*MakeByteTokenizer(), kByteTokenizerVocab, {}));
  return vocabulary;
}

inline GrammarCompiler::Options CompilerOptions(bool hang = false) {
  GrammarCompiler::Options options;
  options.guard_command = GuardCommand(hang);
  options.limits.cpu_time = absl::Seconds(1);
  options.limits.wall_time = hang ? absl::Hours(1) : absl::Seconds(60);
  options.limits.memory_bytes = uint64_t{128} << 20;
  return options;
}

// A result that comes later.
struct Answer {
  GrammarCompiler::Done Taker() {
    return [this](const GrammarCompiler::Result& r) {
      result = r;
      done.Notify();
    };
  }
  const GrammarCompiler::Result& Await() {
    AwaitNotified(done, "an answer of the compiler", absl::Minutes(2));
    return result;
  }
  absl::Notification done;
  GrammarCompiler::Result result = absl::UnknownError("not yet");
};

inline Constraint Regex(std::string text) {
  return {Constraint::Kind::kRegex, std::move(text), {}};
}

}  // namespace bitshard
