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

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/grammar/constraint.h"

namespace bitshard {

struct CompileLimits {
  absl::Duration cpu_time = absl::Seconds(5);
  // How long a busy machine may take to give it these seconds.
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
  // within them. UNAVAILABLE with RetryInfo: the process cannot be started, somebody else killed
  // it, or it got no answer out within wall_time. CANCELLED: interrupted.
  absl::Status Try(const Constraint& constraint) { return Try(constraint, /*again=*/false); }

  // Any thread: kills the process, so that the Try at hand ends at once, and so do all later ones
  // until Rearm.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mu_);
  void Rearm() ABSL_LOCKS_EXCLUDED(mu_);

  // Of the process; 0 when there is none.
  pid_t pid() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Try(const Constraint& constraint, bool again);
  absl::Status Start();
  // Kills what is left of it and collects it. How it ended.
  int Reap() ABSL_LOCKS_EXCLUDED(mu_);
  bool interrupted() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<std::string> command_;
  const std::string* const vocabulary_;
  const CompileLimits limits_;
  int fd_ = -1;

  mutable absl::Mutex mu_;
  pid_t pid_ ABSL_GUARDED_BY(mu_) = 0;  // not collected yet
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

// The other side, on the socket that is file descriptor 0: the whole life of that process. Returns
// its exit code.
int RunCompileGuard();

// The coordinator started with this one argument is such a program.
inline constexpr char kCompileGuardArgument[] = "--compile-guard";

}  // namespace bitshard
