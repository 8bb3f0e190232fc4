// Runs mask jobs on a few threads, made with the first job, shared fairly among tenants.
//
// A mask cannot be interrupted: one that takes too long is answered for by a watcher, as too slow,
// and its thread is left to itself and replaced, a few times; a tenant that has nearly so many such
// threads gets no others until one is over, and until then never more at work than would make it
// so many. So one tenant's slow grammars take a part of the threads from the others, and never all.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/engine/mask_job.h"

namespace bitshard {

class MaskThreads final : public MaskRunner {
 public:
  struct Options {
    int threads = 3;
    // That one tenant's jobs may have; one thread, if there are several, is for others. Of a
    // tenant, those sequences whose masks are slow and those whose are not take turns, and the slow
    // ones leave one of its threads, if it has several, to the rest.
    int tenant_threads = 2;
    // Threads that are left to themselves, at a time; of one tenant one less, if it is not one.
    int max_abandoned = 4;
    MaskTimeLimits limits;
  };

  // `done` is called on these threads, one call at a time, and must not call back.
  MaskThreads(const Options& options, std::function<void(MaskResult)> done);
  // Jobs that wait are dropped; those at work are left to their threads, which own what they need.
  // `done` is not called any more.
  ~MaskThreads() override;

  void Run(MaskJob job) override;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // with the threads
};

}  // namespace bitshard
