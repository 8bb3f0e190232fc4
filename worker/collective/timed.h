// A communicator that is watched: how often, how many bytes and how long, waiting for the other
// ranks included.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"

#include "worker/collective/collective.h"

namespace bitshard {

enum class CollectiveOp { kAllReduce, kAllGather, kBroadcast };

class CollectiveWatcher {
 public:
  virtual ~CollectiveWatcher() = default;
  // On the step thread, after each operation. `bytes`: what this rank puts in.
  virtual void OnCollective(CollectiveOp op, uint64_t bytes, int64_t nanoseconds) = 0;
};

// `watcher` outlives the result.
std::unique_ptr<Collective> MakeTimedCollective(std::unique_ptr<Collective> inner,
                                                CollectiveWatcher* watcher);

}  // namespace bitshard
