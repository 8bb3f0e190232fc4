// Compiles callers' constraints, off every thread that others wait for.
//
// A few threads of its own; bounded in what waits, in time, in memory, and in what is kept, and
// shared fairly among tenants. A constraint that was compiled lately is kept, one that was refused
// is remembered, and one that is being compiled is compiled once for all who ask. What nobody waits
// for any more is not compiled. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coordinator/grammar/compile_guard.h"
#include "coordinator/grammar/constraint.h"
#include "coordinator/grammar/grammar_shelf.h"
#include "coordinator/grammar/token_matcher.h"
#include "coordinator/grammar/vocabulary_bytes.h"

namespace bitshard {

class GrammarCompiler {
 public:
  struct Options {
    // A program that calls RunCompileGuard, with its arguments: tries each constraint first.
    std::vector<std::string> guard_command = {"/proc/self/exe", kCompileGuardArgument};
    CompileLimits limits;
    int threads = 3;
    int tenant_threads = 2;  // that one tenant's constraints may have; threads at most
    // Constraints that wait, those being compiled left out: of one tenant, and of all.
    size_t max_waiting = 64, max_waiting_in_all = 256;
    // Who wait for constraints, equal ones too.
    size_t max_callers = 1024, max_callers_in_all = 4096;
    GrammarShelf::Limits shelf;
    size_t remembered_refusals = 4096;
    // After each compilation, on its thread: how long it took, waiting left out.
    std::function<void(Constraint::Kind kind, absl::Duration time, const absl::Status& status)>
        on_compiled;
    // A constraint found its grammar kept; on the asking thread.
    std::function<void()> on_kept;
  };
  using Result = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;
  using Done = std::function<void(const Result& result)>;
  // One call of Compile; never used again.
  using Ticket = uint64_t;

  GrammarCompiler(const VocabularyBytes& vocabulary, Options options);
  // Stops. What is being tried is killed; what is being compiled here, which cannot be, is left to
  // its thread, which owns what it needs. No callback is called any more.
  ~GrammarCompiler();

  // Whoever waits is answered UNAVAILABLE at once, and so is who comes later.
  void Stop();

  // Calls `done` once: at once, on this thread, when the grammar is kept or the constraint is
  // refused; else on a compiling thread, or in Cancel or Stop. Errors: as ConstraintCompiler and
  // CompileGuard, and RESOURCE_EXHAUSTED with RetryInfo when too many wait, or when the grammars in
  // use have all the memory there is for them.
  Ticket Compile(const Constraint& constraint, const std::string& tenant, Done done);
  // The caller has gone: answered CANCELLED, unless it was answered already. When it was the last
  // one the constraint is dropped, even if it is being tried.
  void Cancel(Ticket ticket);

  // For tests and metrics.
  uint64_t compiled() const;  // or tried and refused
  size_t kept() const;
  size_t waiting() const;  // constraints

 private:
  struct Job;
  struct Shared;

  const std::shared_ptr<Shared> shared_;  // with the threads
};

}  // namespace bitshard
