#include "coordinator/engine/mask_threads.h"

#include <algorithm>
#include <ctime>
#include <list>
#include <optional>
#include <pthread.h>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/stack_thread.h"
#include "coordinator/tenant_queue.h"
#include "kernels/base/log.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);
// How long the end waits for jobs at work: most take less.
constexpr absl::Duration kLastMoment = absl::Milliseconds(100);

std::optional<absl::Duration> TimeOf(clockid_t clock) {
  timespec time = {};
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return absl::DurationFromTimespec(time);
}

// As its sequence has been so far.
bool IsSlow(const MaskJob& job, const MaskTimeLimits& limits) {
  return job.place->used > limits.begin / 20 + limits.each * job.output_index;
}

int ShareOf(const MaskThreads::Options& options) {
  return std::max(1, std::min(options.tenant_threads, options.threads - 1));
}

absl::Status NoThreadLeft() {
  return WithRetryInfo(
      WithErrorInfo(absl::ResourceExhaustedError(
                        "all threads that follow constraints are taken by some that are too slow; "
                        "try again later"),
                    "CONSTRAINT_QUEUE_FULL"),
      absl::Seconds(5));
}

MaskResult Refused(const MaskJob& job) {
  return {.id = job.id, .output_index = job.output_index, .status = NoThreadLeft(), .mask = {}};
}

}  // namespace

// Outlives the runner while jobs are at work.
struct MaskThreads::Shared : std::enable_shared_from_this<MaskThreads::Shared> {
  struct AtWork {
    SequenceId id;
    uint32_t output_index;
    std::string tenant;
    bool slow;
    clockid_t clock;  // of its thread
    absl::Duration begin, allowed;
    bool answered = false;  // its thread is left to itself
  };

  Shared(const Options& given, std::function<void(MaskResult)> to)
      : options(given),
        done(std::move(to)),
        queue(ShareOf(given), std::max(1, ShareOf(given) - 1)) {}

  void Work();
  void Watch();
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Abandon(AtWork& job, absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // What the tenant has at work; or only what of it has taken too long and is not over.
  int AtWorkOf(const std::string& tenant, bool answered_only) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A job of the tenant may begin, waited for if need be: each that is at work may take too long.
  // False when as many as may be have, or at the end.
  bool AwaitRoom(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  const std::function<void(MaskResult)> done;

  absl::Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool watched ABSL_GUARDED_BY(mu) = false;
  TenantQueue<std::shared_ptr<MaskJob>> queue ABSL_GUARDED_BY(mu);
  std::list<AtWork> at_work ABSL_GUARDED_BY(mu);
  int threads ABSL_GUARDED_BY(mu) = 0;    // that take jobs
  int abandoned ABSL_GUARDED_BY(mu) = 0;  // that are at their last one
};

MaskThreads::MaskThreads(const Options& options, std::function<void(MaskResult)> done)
    : shared_(std::make_shared<Shared>(options, std::move(done))) {}

MaskThreads::~MaskThreads() {
  Shared& s = *shared_;
  absl::MutexLock lock(&s.mu);
  s.stopping = true;
  s.queue.Clear();
  const auto over = [&s]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(s.mu) {
    return s.threads == 0 && s.abandoned == 0 && !s.watched;
  };
  s.mu.AwaitWithTimeout(absl::Condition(&over), kLastMoment);
}

void MaskThreads::Run(MaskJob job) {
  Shared& s = *shared_;
  absl::MutexLock lock(&s.mu);
  if (s.threads < s.options.threads && s.abandoned < s.options.max_abandoned) s.StartThread();
  if (s.threads == 0) {
    s.done(Refused(job));
    return;
  }
  if (!s.watched) {
    s.watched = RunDetached([shared = shared_] { shared->Watch(); });
  }
  const std::string tenant = job.place->tenant;
  const bool slow = IsSlow(job, s.options.limits);
  s.queue.Push(tenant, std::make_shared<MaskJob>(std::move(job)), slow);
}

int MaskThreads::Shared::AtWorkOf(const std::string& tenant, bool answered_only) const {
  return static_cast<int>(std::count_if(at_work.begin(), at_work.end(), [&](const AtWork& job) {
    return job.tenant == tenant && (job.answered || !answered_only);
  }));
}

bool MaskThreads::Shared::AwaitRoom(const std::string& tenant) {
  const int most = std::max(1, options.max_abandoned - 1);
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return AtWorkOf(tenant, /*answered_only=*/true) >= most;
  };
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return stopping || enough() || AtWorkOf(tenant, /*answered_only=*/false) < most;
  };
  mu.Await(absl::Condition(&known));
  return !stopping && !enough();
}

void MaskThreads::Shared::StartThread() {
  if (RunDetached([shared = shared_from_this()] { shared->Work(); })) ++threads;
}

void MaskThreads::Shared::Work() {
  const auto ready = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping || queue.CanPop(); };
  clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  absl::MutexLock lock(&mu);
  while (true) {
    mu.Await(absl::Condition(&ready));
    if (stopping) break;
    auto taken = queue.Pop();
    if (!AwaitRoom(taken.tenant)) {
      queue.Done(taken.tenant, taken.slow);
      if (!stopping) done(Refused(*taken.work));
      continue;
    }
    const auto entry =
        at_work.insert(at_work.end(), {.id = taken.work->id,
                                       .output_index = taken.work->output_index,
                                       .tenant = taken.tenant,
                                       .slow = taken.slow,
                                       .clock = clock,
                                       .begin = TimeOf(clock).value_or(absl::ZeroDuration()),
                                       .allowed = options.limits.Of(*taken.work)});
    mu.Unlock();
    MaskResult result = RunMaskJob(*taken.work, options.limits);
    taken.work.reset();
    mu.Lock();
    const bool answered = entry->answered;
    at_work.erase(entry);
    if (answered) {
      --abandoned;
      return;
    }
    queue.Done(taken.tenant, taken.slow);
    if (!stopping) done(std::move(result));
  }
  --threads;
}

void MaskThreads::Shared::Watch() {
  const auto some = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping || !at_work.empty(); };
  absl::MutexLock lock(&mu);
  while (!stopping) {
    mu.Await(absl::Condition(&some));
    mu.AwaitWithTimeout(absl::Condition(&stopping), kLook);
    if (stopping) break;
    for (AtWork& job : at_work) {
      if (job.answered) continue;
      const absl::Duration time = TimeOf(job.clock).value_or(job.begin) - job.begin;
      if (time > job.allowed) Abandon(job, time);
    }
  }
  watched = false;
}

void MaskThreads::Shared::Abandon(AtWork& job, absl::Duration time) {
  job.answered = true;
  queue.Done(job.tenant, job.slow);
  --threads;
  ++abandoned;
  LogWarning("grammar: event=mask_too_slow output={} abandoned={}", job.output_index, abandoned);
  done({.id = job.id,
        .output_index = job.output_index,
        .status = MaskTooSlowError(job.output_index, time),
        .mask = {}});
  if (abandoned < options.max_abandoned) StartThread();
  if (threads > 0) return;
  // Nobody is left to do what waits.
  while (queue.CanPop()) {
    auto taken = queue.Pop();
    done(Refused(*taken.work));
    queue.Done(taken.tenant, taken.slow);
  }
}

}  // namespace bitshard
