// Tries a constraint in a process of its own before ours compiles it.
//
// A library that cannot be stopped, fed by callers: time, memory and stack are bounded by the
// kernel, there, and what breaks its bound takes that process along and nothing else. Compiling is
// a function of the constraint, so what passed there passes here. The process is started when it is
// first needed, keeps the vocabulary, and is replaced when it died.
//
// Not thread-safe: one guard a compiling thread.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coordinator/grammar/constraint.h"

namespace bitshard {

struct CompileLimits {
  absl::Duration cpu_time = absl::Seconds(5);
  // On a machine that is busy with other things: how long a caller may wait for these seconds.
  absl::Duration wall_time = absl::Seconds(20);
  uint64_t memory_bytes = uint64_t{512} << 20;  // on top of the vocabulary
};

class CompileGuard {
 public:
  // `command` is a program that calls RunCompileGuard, with its arguments; `vocabulary` is
  // VocabularyBytes::Serialize(), and outlives the guard.
  CompileGuard(std::vector<std::string> command, const std::string* vocabulary,
               const CompileLimits& limits);
  ~CompileGuard();
  CompileGuard(const CompileGuard&) = delete;
  CompileGuard& operator=(const CompileGuard&) = delete;

  // OK when it compiles within the limits. INVALID_ARGUMENT naming the field: it does not, or not
  // within them. UNAVAILABLE: the process cannot be started.
  absl::Status Try(const Constraint& constraint) { return Try(constraint, /*again=*/false); }

  // Of the process; 0 when there is none.
  pid_t pid() const { return pid_; }

 private:
  absl::Status Try(const Constraint& constraint, bool again);
  absl::Status Start();
  // Kills what is left of it and collects it. How it ended.
  int Reap();

  const std::vector<std::string> command_;
  const std::string* const vocabulary_;
  const CompileLimits limits_;
  pid_t pid_ = 0;
  int fd_ = -1;
};

// The other side, on the socket that is file descriptor 0: the whole life of that process. Returns
// its exit code.
int RunCompileGuard();

// The coordinator started with this one argument is such a program.
inline constexpr char kCompileGuardArgument[] = "--compile-guard";

}  // namespace bitshard
