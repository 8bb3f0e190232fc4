// Tells ThreadSanitizer what Debian's Abseil synchronises, which it can't see: that library is not
// instrumented, and without this every field guarded by an absl::Mutex would be reported as a race.
//
// --config=tsan links this file into every program (--custom_malloc). The functions below stand
// before the library's own of the same name, call them, and add the release or acquire. Only
// happens-before is modelled: no lock-order reports. Conditions of Await and LockWhen may be run by
// the thread that unlocks; reads inside them are not checked.
#if defined(__SANITIZE_THREAD__)

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// The library's own function behind ours.
template <typename Function>
Function* Next(const char* symbol) {
  void* const next = dlsym(RTLD_NEXT, symbol);
  if (next == nullptr) {
    std::fprintf(stderr, "tsan_abseil: this Abseil has no %s\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(next);
}

// absl::Notification is {Mutex mutex_; std::atomic<bool> notified_yet_}; HasBeenNotified() is
// inline and reads the second.
void* NotifiedYet(const absl::Notification* notification) {
  const char* const start = reinterpret_cast<const char*>(notification);
  return const_cast<char*>(start + sizeof(absl::Mutex));
}

}  // namespace

// The mangled names of this Abseil: its inline namespace is debian3.
#define BITSHARD_ABSL(rest) "_ZN4absl7debian3" rest
#define BITSHARD_ABSL_CONST(rest) "_ZNK4absl7debian3" rest

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const next = Next<void(Mutex*)>(BITSHARD_ABSL("5Mutex4LockEv"));
  next(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const next = Next<void(Mutex*)>(BITSHARD_ABSL("5Mutex6UnlockEv"));
  __tsan_release(this);
  next(this);
}

bool Mutex::TryLock() {
  static auto* const next = Next<bool(Mutex*)>(BITSHARD_ABSL("5Mutex7TryLockEv"));
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const next = Next<void(Mutex*)>(BITSHARD_ABSL("5Mutex10ReaderLockEv"));
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const next = Next<void(Mutex*)>(BITSHARD_ABSL("5Mutex12ReaderUnlockEv"));
  __tsan_release(this);
  next(this);
}

bool Mutex::ReaderTryLock() {
  static auto* const next = Next<bool(Mutex*)>(BITSHARD_ABSL("5Mutex13ReaderTryLockEv"));
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const next =
      Next<void(Mutex*, const Condition&)>(BITSHARD_ABSL("5Mutex8LockWhenERKNS0_9ConditionE"));
  next(this, condition);
  __tsan_acquire(this);
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  static auto* const next = Next<void(Mutex*, const Condition&)>(
      BITSHARD_ABSL("5Mutex14ReaderLockWhenERKNS0_9ConditionE"));
  next(this, condition);
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  static auto* const next = Next<bool(Mutex*, const Condition&, absl::Time)>(
      BITSHARD_ABSL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"));
  const bool held = next(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  static auto* const next = Next<bool(Mutex*, const Condition&, absl::Duration)>(
      BITSHARD_ABSL("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
  const bool held = next(this, condition, timeout);
  __tsan_acquire(this);
  return held;
}

void Mutex::Await(const Condition& condition) {
  static auto* const next =
      Next<void(Mutex*, const Condition&)>(BITSHARD_ABSL("5Mutex5AwaitERKNS0_9ConditionE"));
  __tsan_release(this);
  next(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  static auto* const next = Next<bool(Mutex*, const Condition&, absl::Time)>(
      BITSHARD_ABSL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"));
  __tsan_release(this);
  const bool held = next(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  static auto* const next = Next<bool(Mutex*, const Condition&, absl::Duration)>(
      BITSHARD_ABSL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
  __tsan_release(this);
  const bool held = next(this, condition, timeout);
  __tsan_acquire(this);
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const next =
      Next<void(CondVar*, Mutex*)>(BITSHARD_ABSL("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  next(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static auto* const next = Next<bool(CondVar*, Mutex*, absl::Time)>(
      BITSHARD_ABSL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const bool expired = next(this, mutex, deadline);
  __tsan_acquire(mutex);
  return expired;
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static auto* const next = Next<bool(CondVar*, Mutex*, absl::Duration)>(
      BITSHARD_ABSL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const bool expired = next(this, mutex, timeout);
  __tsan_acquire(mutex);
  return expired;
}

bool Condition::Eval() const {
  static auto* const next = Next<bool(const Condition*)>(BITSHARD_ABSL_CONST("9Condition4EvalEv"));
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool value = next(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return value;
}

void Notification::Notify() {
  static auto* const next = Next<void(Notification*)>(BITSHARD_ABSL("12Notification6NotifyEv"));
  __tsan_release(NotifiedYet(this));
  next(this);
}

void Notification::WaitForNotification() const {
  static auto* const next =
      Next<void(const Notification*)>(BITSHARD_ABSL_CONST("12Notification19WaitForNotificationEv"));
  next(this);
  __tsan_acquire(NotifiedYet(this));
}

bool Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  static auto* const next = Next<bool(const Notification*, absl::Duration)>(
      BITSHARD_ABSL_CONST("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"));
  const bool notified = next(this, timeout);
  if (notified) __tsan_acquire(NotifiedYet(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(absl::Time deadline) const {
  static auto* const next = Next<bool(const Notification*, absl::Time)>(
      BITSHARD_ABSL_CONST("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE"));
  const bool notified = next(this, deadline);
  if (notified) __tsan_acquire(NotifiedYet(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static auto* const next =
      Next<bool(BlockingCounter*)>(BITSHARD_ABSL("15BlockingCounter14DecrementCountEv"));
  __tsan_release(this);
  return next(this);
}

void BlockingCounter::Wait() {
  static auto* const next = Next<void(BlockingCounter*)>(BITSHARD_ABSL("15BlockingCounter4WaitEv"));
  next(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl

#endif  // __SANITIZE_THREAD__
