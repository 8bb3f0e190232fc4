// Compiles callers' constraints, off every thread that others wait for.
//
// A few threads of its own; bounded in what waits, in time, in memory, and in what is kept. A
// constraint that was compiled lately is kept (the one used longest ago goes first), and one that
// is being compiled is compiled once for all who ask. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/grammar/compile_guard.h"
#include "coordinator/grammar/constraint.h"
#include "coordinator/grammar/constraint_compiler.h"
#include "coordinator/grammar/token_matcher.h"
#include "coordinator/grammar/vocabulary_bytes.h"

namespace bitshard {

class GrammarCompiler {
 public:
  struct Options {
    // A program that calls RunCompileGuard, with its arguments: tries each constraint first.
    std::vector<std::string> guard_command = {"/proc/self/exe", kCompileGuardArgument};
    CompileLimits limits;
    int threads = 2;
    size_t max_waiting = 64;                    // constraints, those being compiled left out
    size_t max_callers = 1024;                  // who wait for constraints, equal ones too
    uint64_t kept_bytes = uint64_t{256} << 20;  // of grammars that nobody may use at the moment
    size_t kept_grammars = 256;
    // After each compilation, on its thread: how long it took, waiting left out.
    std::function<void(Constraint::Kind kind, absl::Duration time, const absl::Status& status)>
        on_compiled;
    // A constraint found its grammar kept; on the asking thread.
    std::function<void()> on_kept;
  };
  using Result = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;
  using Done = std::function<void(const Result& result)>;

  GrammarCompiler(const VocabularyBytes& vocabulary, Options options);
  // Stops, and waits for the constraints at hand (CompileLimits).
  ~GrammarCompiler();

  // Whoever waits is answered UNAVAILABLE at once, and so is who comes later.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `done` once: at once, on this thread, when the grammar is kept or the constraint is
  // refused as it stands; else on a compiling thread. Errors: as ConstraintCompiler and
  // CompileGuard, and RESOURCE_EXHAUSTED with RetryInfo when too many wait.
  void Compile(const Constraint& constraint, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // For tests and metrics.
  uint64_t compiled() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t kept() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Job {
    Constraint constraint;
    std::vector<Done> waiting;
  };
  struct Kept {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };

  void Loop();
  Result CompileNow(const Constraint& constraint, CompileGuard& guard);
  void Keep(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Made by the first that needs it: many services never do.
  const ConstraintCompiler& compiler();

  const Options options_;
  const std::string vocabulary_;
  absl::once_flag compiler_once_;
  std::unique_ptr<const ConstraintCompiler> compiler_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mu_);               // keys of jobs
  size_t callers_ ABSL_GUARDED_BY(mu_) = 0;                          // in jobs' waiting
  absl::flat_hash_map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);  // waiting or being compiled
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);                        // used last comes first
  absl::flat_hash_map<std::string, std::list<Kept>::iterator> kept_by_key_ ABSL_GUARDED_BY(mu_);
  uint64_t compiled_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace bitshard
