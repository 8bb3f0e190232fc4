#include "coordinator/grammar/grammar_compiler.h"

#include <algorithm>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "coordinator/checkpoint/sha256.h"
#include "coordinator/grammar/constraint_compiler.h"
#include "coordinator/stack_thread.h"
#include "coordinator/tenant_queue.h"
#include "kernels/base/check.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// How long the end waits for a compilation that cannot be ended: most take less.
constexpr absl::Duration kLastMoment = absl::Milliseconds(100);

absl::Status EndsError() {
  return WithRetryInfo(
      WithErrorInfo(absl::UnavailableError("the service ends; the constraint was not compiled"),
                    "DRAINING"),
      absl::Seconds(1));
}

absl::Status TooMany(size_t count, absl::string_view what) {
  return WithRetryInfo(WithErrorInfo(absl::ResourceExhaustedError(
                                         absl::StrCat(count, " ", what, "; try again later")),
                                     "CONSTRAINT_QUEUE_FULL"),
                       absl::Seconds(1));
}

absl::Status NoMemory() {
  return WithRetryInfo(
      WithErrorInfo(absl::ResourceExhaustedError(
                        "the constraints of requests at work take all the memory there is for "
                        "them; try again when some have ended"),
                    "CONSTRAINT_MEMORY"),
      absl::Seconds(2));
}

std::string KeyOf(const Constraint& constraint) {
  Sha256 digest;
  digest.Add(constraint.Key());
  return digest.HexDigest();
}

}  // namespace

// One constraint that somebody waits for.
struct GrammarCompiler::Job {
  struct Caller {
    Ticket ticket = 0;
    std::string tenant;
    Done done;
  };
  enum class At { kWaiting, kTrying, kCompiling };

  bool HasCallerOf(const std::string& tenant) const {
    return std::any_of(callers.begin(), callers.end(),
                       [&](const Caller& caller) { return caller.tenant == tenant; });
  }

  std::string key;
  Constraint constraint;
  // Under the lock.
  std::vector<Caller> callers;
  At at = At::kWaiting;
  CompileGuard* guard = nullptr;  // that tries it
  bool dropped = false;
};

// Outlives the compiler while threads are in a compilation.
struct GrammarCompiler::Shared {
  Shared(const VocabularyBytes& of, Options given)
      : options(std::move(given)),
        vocabulary(of.Serialize()),
        queue(std::max(1, std::min(options.tenant_threads, options.threads))),
        shelf(options.shelf),
        refusals(options.remembered_refusals) {}

  // The life of a thread.
  void Loop();
  // False at the end.
  bool Work(CompileGuard* guard);
  // Made by the first that needs it: many services never do.
  const ConstraintCompiler& Compiler();
  // Why the constraint is not taken now; OK when it is.
  absl::Status Refuse(const std::string& key, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The job has this result; who is to be told.
  std::vector<Job::Caller> Conclude(Job* job, Result* result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ForgetCaller(const Job::Caller& caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  const std::string vocabulary;
  absl::once_flag compiler_once;
  std::unique_ptr<const ConstraintCompiler> compiler;

  absl::Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  Ticket next_ticket ABSL_GUARDED_BY(mu) = 1;
  // A job is in the queue once for each tenant that waits for it.
  TenantQueue<std::shared_ptr<Job>> queue ABSL_GUARDED_BY(mu);
  // By key, but those that were dropped.
  absl::flat_hash_map<std::string, std::shared_ptr<Job>> jobs ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<Ticket, std::shared_ptr<Job>> callers ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string, size_t> callers_of ABSL_GUARDED_BY(mu);  // tenants
  GrammarShelf shelf ABSL_GUARDED_BY(mu);
  RefusalBook refusals ABSL_GUARDED_BY(mu);
  uint64_t compiled ABSL_GUARDED_BY(mu) = 0;
  int threads ABSL_GUARDED_BY(mu) = 0;    // alive
  int compiling ABSL_GUARDED_BY(mu) = 0;  // of them: in what nobody can end
};

GrammarCompiler::GrammarCompiler(const VocabularyBytes& vocabulary, Options options)
    : shared_(std::make_shared<Shared>(vocabulary, std::move(options))) {
  absl::MutexLock lock(&shared_->mu);
  for (int i = 0; i < shared_->options.threads; ++i) {
    CHECK(RunDetached([shared = shared_] { shared->Loop(); })) << "no thread can be made";
    ++shared_->threads;
  }
}

GrammarCompiler::~GrammarCompiler() {
  Stop();
  Shared& s = *shared_;
  absl::MutexLock lock(&s.mu);
  const auto over = [&s]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(s.mu) { return s.threads == 0; };
  if (s.mu.AwaitWithTimeout(absl::Condition(&over), kLastMoment)) return;
  const auto left = [&s]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(s.mu) { return s.threads == s.compiling; };
  s.mu.Await(absl::Condition(&left));
}

void GrammarCompiler::Stop() {
  std::vector<Job::Caller> dropped;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->stopping = true;
    for (auto& [key, job] : shared_->jobs) {
      for (Job::Caller& caller : job->callers) dropped.push_back(std::move(caller));
      job->callers.clear();
      if (job->guard != nullptr) job->guard->Interrupt();
    }
    shared_->queue.Clear();
    shared_->callers.clear();
    shared_->callers_of.clear();
  }
  for (const Job::Caller& caller : dropped) caller.done(EndsError());
}

absl::Status GrammarCompiler::Shared::Refuse(const std::string& key, const std::string& tenant) {
  if (stopping) return EndsError();
  if (absl::Status known = refusals.Find(key); !known.ok()) return known;
  const auto own = callers_of.find(tenant);
  if (callers.size() >= options.max_callers_in_all ||
      (own != callers_of.end() && own->second >= options.max_callers)) {
    return TooMany(callers.size(), "requests wait for their constraints to be compiled");
  }
  if (jobs.contains(key)) return absl::OkStatus();
  if (queue.waiting() >= options.max_waiting_in_all ||
      queue.waiting(tenant) >= options.max_waiting) {
    return TooMany(queue.waiting(), "constraints wait to be compiled");
  }
  return shelf.Full() ? NoMemory() : absl::OkStatus();
}

GrammarCompiler::Ticket GrammarCompiler::Compile(const Constraint& constraint,
                                                 const std::string& tenant, Done done) {
  if (absl::Status wrong = CheckConstraint(constraint); !wrong.ok()) {
    done(wrong);
    return 0;
  }
  std::string key = KeyOf(constraint);
  Result result;
  {
    Shared& s = *shared_;
    absl::MutexLock lock(&s.mu);
    if (std::shared_ptr<const CompiledGrammar> kept = s.shelf.Find(key); kept != nullptr) {
      result = std::move(kept);
    } else if (absl::Status refusal = s.Refuse(key, tenant); !refusal.ok()) {
      result = std::move(refusal);
    } else {
      std::shared_ptr<Job>& job = s.jobs[key];
      if (job == nullptr) {
        job = std::make_shared<Job>();
        job->key = std::move(key);
        job->constraint = constraint;
      }
      if (job->at == Job::At::kWaiting && !job->HasCallerOf(tenant)) s.queue.Push(tenant, job);
      const Ticket ticket = s.next_ticket++;
      job->callers.push_back({ticket, tenant, std::move(done)});
      s.callers.emplace(ticket, job);
      ++s.callers_of[tenant];
      return ticket;
    }
  }
  if (result.ok() && shared_->options.on_kept) shared_->options.on_kept();
  done(result);
  return 0;
}

void GrammarCompiler::Cancel(Ticket ticket) {
  Job::Caller gone;
  {
    Shared& s = *shared_;
    absl::MutexLock lock(&s.mu);
    const auto found = s.callers.find(ticket);
    if (found == s.callers.end()) return;
    const std::shared_ptr<Job> job = found->second;
    const auto caller =
        std::find_if(job->callers.begin(), job->callers.end(),
                     [ticket](const Job::Caller& one) { return one.ticket == ticket; });
    gone = std::move(*caller);
    job->callers.erase(caller);
    s.ForgetCaller(gone);
    if (job->at == Job::At::kWaiting && !job->HasCallerOf(gone.tenant))
      s.queue.Remove(gone.tenant, job);
    // What is nearly compiled may as well be kept.
    if (job->callers.empty() && job->at != Job::At::kCompiling) {
      job->dropped = true;
      s.jobs.erase(job->key);
      if (job->guard != nullptr) job->guard->Interrupt();
    }
  }
  gone.done(absl::CancelledError("the caller has gone"));
}

void GrammarCompiler::Shared::ForgetCaller(const Job::Caller& caller) {
  callers.erase(caller.ticket);
  const auto own = callers_of.find(caller.tenant);
  if (own != callers_of.end() && --own->second == 0) callers_of.erase(own);
}

void GrammarCompiler::Shared::Loop() {
  {
    CompileGuard guard(options.guard_command, &vocabulary, options.limits);
    while (Work(&guard)) {
    }
  }
  absl::MutexLock lock(&mu);
  --threads;
}

bool GrammarCompiler::Shared::Work(CompileGuard* guard) {
  std::shared_ptr<Job> job;
  std::string tenant;
  {
    const auto ready = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping || queue.CanPop(); };
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(&ready));
    if (stopping) return false;
    auto taken = queue.Pop();
    tenant = std::move(taken.tenant);
    job = std::move(taken.work);
    for (const Job::Caller& caller : job->callers) queue.Remove(caller.tenant, job);
    guard->Rearm();
    job->guard = guard;
    job->at = Job::At::kTrying;
  }
  const absl::Time begin = absl::Now();
  const absl::Status tried = guard->Try(job->constraint);
  {
    absl::MutexLock lock(&mu);
    job->guard = nullptr;
    if (stopping) return false;
    if (job->dropped) {
      queue.Done(tenant);
      return true;
    }
    job->at = Job::At::kCompiling;
    if (tried.ok()) ++compiling;
  }
  Result result = tried.ok() ? Compiler().Compile(job->constraint) : Result(tried);
  {
    absl::MutexLock lock(&mu);
    if (tried.ok()) --compiling;
    if (stopping) return false;
  }
  if (options.on_compiled)
    options.on_compiled(job->constraint.kind, absl::Now() - begin, result.status());
  std::vector<Job::Caller> told;
  {
    absl::MutexLock lock(&mu);
    queue.Done(tenant);
    told = Conclude(job.get(), &result);
  }
  for (const Job::Caller& caller : told) caller.done(result);
  return true;
}

std::vector<GrammarCompiler::Job::Caller> GrammarCompiler::Shared::Conclude(Job* job,
                                                                            Result* result) {
  ++compiled;
  jobs.erase(job->key);
  if (result->ok() && !shelf.Put(job->key, **result)) *result = NoMemory();
  // Others depend on what else there was to do.
  if (absl::IsInvalidArgument(result->status())) refusals.Add(job->key, result->status());
  std::vector<Job::Caller> told = std::exchange(job->callers, {});
  for (const Job::Caller& caller : told) ForgetCaller(caller);
  return told;
}

const ConstraintCompiler& GrammarCompiler::Shared::Compiler() {
  absl::call_once(compiler_once, [this] {
    const absl::StatusOr<VocabularyBytes> parsed = VocabularyBytes::Parse(vocabulary);
    CHECK_OK(parsed.status());
    compiler = std::make_unique<const ConstraintCompiler>(
        *parsed, GrammarMemory::Limits{.all = options.shelf.bytes});
  });
  return *compiler;
}

uint64_t GrammarCompiler::compiled() const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->compiled;
}

size_t GrammarCompiler::kept() const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->shelf.size();
}

size_t GrammarCompiler::waiting() const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->queue.waiting();
}

}  // namespace bitshard
