#include "coordinator/grammar/grammar_compiler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

absl::Status EndsError() {
  return absl::UnavailableError("the service ends; the constraint was not compiled");
}

}  // namespace

GrammarCompiler::GrammarCompiler(const VocabularyBytes& vocabulary, Options options)
    : options_(std::move(options)), vocabulary_(vocabulary.Serialize()) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

GrammarCompiler::~GrammarCompiler() {
  Stop();
  for (std::thread& thread : threads_) thread.join();
}

void GrammarCompiler::Stop() {
  std::vector<Done> dropped;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [key, job] : jobs_) {
      std::move(job.waiting.begin(), job.waiting.end(), std::back_inserter(dropped));
      job.waiting.clear();
    }
    for (const std::string& key : queue_) jobs_.erase(key);
    queue_.clear();
    callers_ = 0;
  }
  for (const Done& done : dropped) done(EndsError());
}

void GrammarCompiler::Compile(const Constraint& constraint, Done done) {
  if (absl::Status wrong = CheckConstraint(constraint); !wrong.ok()) return done(wrong);
  Result result;
  std::string key = constraint.Key();
  {
    absl::MutexLock lock(&mu_);
    if (const auto kept = kept_by_key_.find(key); kept != kept_by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, kept->second);
      result = kept->second->grammar;
    } else if (stopping_) {
      result = EndsError();
    } else if (callers_ >= options_.max_callers) {
      result = WithRetryInfo(
          absl::ResourceExhaustedError(absl::StrCat(
              callers_, " requests wait for their constraints to be compiled; try again later")),
          absl::Seconds(1));
    } else if (const auto job = jobs_.find(key); job != jobs_.end()) {
      job->second.waiting.push_back(std::move(done));
      ++callers_;
      return;
    } else if (queue_.size() >= options_.max_waiting) {
      result =
          WithRetryInfo(absl::ResourceExhaustedError(absl::StrCat(
                            queue_.size(), " constraints wait to be compiled; try again later")),
                        absl::Seconds(1));
    } else {
      Job& job = jobs_[key];
      job.constraint = constraint;
      job.waiting.push_back(std::move(done));
      ++callers_;
      queue_.push_back(std::move(key));
      return;
    }
  }
  if (result.ok() && options_.on_kept) options_.on_kept();
  done(result);
}

void GrammarCompiler::Loop() {
  CompileGuard guard(options_.guard_command, &vocabulary_, options_.limits);
  while (true) {
    std::string key;
    Constraint constraint;
    {
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      };
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));
      if (stopping_) return;
      key = std::move(queue_.front());
      queue_.pop_front();
      constraint = jobs_.at(key).constraint;
    }
    const absl::Time begin = absl::Now();
    const Result result = CompileNow(constraint, guard);
    if (options_.on_compiled)
      options_.on_compiled(constraint.kind, absl::Now() - begin, result.status());
    std::vector<Done> waiting;
    {
      absl::MutexLock lock(&mu_);
      ++compiled_;
      if (result.ok()) Keep(key, *result);
      waiting = std::move(jobs_.at(key).waiting);
      callers_ -= waiting.size();
      jobs_.erase(key);
    }
    for (const Done& done : waiting) done(result);
  }
}

GrammarCompiler::Result GrammarCompiler::CompileNow(const Constraint& constraint,
                                                    CompileGuard& guard) {
  RETURN_IF_ERROR(guard.Try(constraint));
  return compiler().Compile(constraint);
}

const ConstraintCompiler& GrammarCompiler::compiler() {
  absl::call_once(compiler_once_, [this] {
    const absl::StatusOr<VocabularyBytes> vocabulary = VocabularyBytes::Parse(vocabulary_);
    CHECK_OK(vocabulary.status());
    compiler_ = std::make_unique<const ConstraintCompiler>(*vocabulary);
  });
  return *compiler_;
}

void GrammarCompiler::Keep(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar) {
  kept_.push_front({key, std::move(grammar)});
  kept_by_key_[key] = kept_.begin();
  // Grammars grow while they are used, so all are asked again.
  uint64_t bytes = 0;
  size_t count = 0;
  for (auto it = kept_.begin(); it != kept_.end();) {
    bytes += it->grammar->MemoryBytes();
    if (++count == 1 || (bytes <= options_.kept_bytes && count <= options_.kept_grammars)) {
      ++it;
      continue;
    }
    kept_by_key_.erase(it->key);
    it = kept_.erase(it);
  }
}

uint64_t GrammarCompiler::compiled() const {
  absl::MutexLock lock(&mu_);
  return compiled_;
}

size_t GrammarCompiler::kept() const {
  absl::MutexLock lock(&mu_);
  return kept_.size();
}

}  // namespace bitshard
