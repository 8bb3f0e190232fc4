#include "worker/collective/watchdog.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "worker/collective/collective.h"

namespace bitshard {

Watchdog::Watchdog(Options options)
    : options_(std::move(options)),
      timeout_(std::max(options_.operation_timeout, options_.connect_timeout)),
      thread_([this] { Loop(); }) {}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  thread_.join();
}

void Watchdog::Note(const char* what, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  ++begun_;
  what_ = what;
  bytes_ = bytes;
}

absl::Status Watchdog::Enter() {
  absl::MutexLock lock(&mu_);
  if (!fired_.ok()) return fired_;
  CHECK(!inside_ && !waiting_);
  inside_ = true;
  StartTimer();
  return absl::OkStatus();
}

absl::Status Watchdog::Leave(const absl::Status& result) {
  absl::MutexLock lock(&mu_);
  if (!result.ok()) Fire(Why(result.message()));
  inside_ = false;
  deadline_ = absl::InfiniteFuture();
  return fired_;
}

absl::Status Watchdog::BeginWait() {
  absl::MutexLock lock(&mu_);
  CHECK(!inside_);
  waiting_ = true;
  StartTimer();
  return fired_;
}

absl::Status Watchdog::EndWait() {
  absl::MutexLock lock(&mu_);
  waiting_ = false;
  deadline_ = absl::InfiniteFuture();
  return fired_;
}

void Watchdog::SetProgressWord(const uint64_t* word) {
  absl::MutexLock lock(&mu_);
  progress_word_ = word;
}

void Watchdog::SetConnected() {
  absl::MutexLock lock(&mu_);
  timeout_ = options_.operation_timeout;
}

absl::Status Watchdog::status() const {
  absl::MutexLock lock(&mu_);
  return fired_;
}

void Watchdog::Abort() {
  absl::MutexLock lock(&mu_);
  Fire(CollectiveAbort(options_.rank));
}

void Watchdog::Fire(const absl::Status& why) {
  if (fired_.ok()) fired_ = why;
}

void Watchdog::StartTimer() {
  deadline_ = options_.now() + timeout_;
  progress_ = Progress();
}

uint64_t Watchdog::Progress() const {
  return progress_word_ == nullptr ? 0 : __atomic_load_n(progress_word_, __ATOMIC_RELAXED);
}

absl::Status Watchdog::Why(absl::string_view what) const {
  const std::string operation =
      begun_ == 0 ? "no operation yet"
                  : absl::StrCat("operation ", begun_, " (", what_, " of ", bytes_, " bytes)");
  return absl::UnavailableError(absl::StrCat(options_.communicator, ", rank ", options_.rank, ", ",
                                             waiting_ ? "waiting for the device, last begun: " : "",
                                             operation, ": ", what, "; ", options_.advice));
}

void Watchdog::Loop() {
  for (;;) {
    const absl::Status found = options_.error();
    absl::MutexLock lock(&mu_);
    if (!found.ok()) Fire(Why(found.message()));
    if (deadline_ != absl::InfiniteFuture() && Progress() != progress_) StartTimer();
    if (options_.now() >= deadline_) {
      Fire(Why(absl::StrCat("not over within ", absl::FormatDuration(timeout_),
                            ": another rank is gone, hangs or does something else")));
    }
    const auto woken = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closing_ || !fired_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&woken), std::min(kPeriod, deadline_ - options_.now()));
    if (!fired_.ok()) break;
    if (closing_) return;
  }
  absl::Status why;
  bool in_call = false;
  {
    absl::MutexLock lock(&mu_);
    const auto outside = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !inside_; };
    in_call = !mu_.AwaitWithTimeout(absl::Condition(&outside), kCallPatience);
    why = fired_;
  }
  if (!IsCollectiveAbort(why))
    LogWarning("collective: aborting in_call={}: {}", in_call, std::string(why.message()));
  options_.abort();
}

}  // namespace bitshard
