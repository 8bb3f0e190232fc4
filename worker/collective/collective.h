// What ranks say to each other inside a step. Three operations, all in place on memory of the
// caller; every rank calls the same operations in the same order with the same sizes.
//
// Used by the step thread only, except Abort, which any thread may call: every pending and later
// call then returns UNAVAILABLE, promptly. An object lives for one epoch; recovery makes a new one
// under a new id.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace bitshard {

class DeviceCollective;  // device_collective.h

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // values[i] becomes the sum over the ranks (int64 wraps, hence any order of summation gives the
  // same bits).
  virtual absl::Status AllReduceSum(absl::Span<int64_t> values) = 0;

  // all[r * mine.size() .. ) becomes rank r's `mine`. REQUIRES: all.size() == world() *
  // mine.size().
  virtual absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) = 0;

  // data of rank `root` on all ranks.
  virtual absl::Status Broadcast(absl::Span<uint8_t> data, int root) = 0;

  virtual void Abort() = 0;

  // The one that can also work on device memory, else null.
  virtual DeviceCollective* device_collective() { return nullptr; }
};

// UNAVAILABLE "collective aborted by rank R": what operations return after an Abort.
absl::Status CollectiveAbort(int rank);
// Whether an operation ended with that. It is no cause: the rank that aborted has failed and says
// why, or was told to end.
bool IsCollectiveAbort(const absl::Status& status);

// Ranks on one host over POSIX shared memory; also works between threads of one process. `id` names
// the segment and carries term and epoch; rank 0 creates it, all attach, and it is unlinked once
// all have attached (or on failure). UNAVAILABLE when not all ranks came within `timeout`: the
// message names the missing ranks. CANCELLED soon after another thread has set `*stop`.
absl::StatusOr<std::unique_ptr<Collective>> JoinShmCollective(
    const std::string& id, int rank, int world, absl::Duration timeout,
    const std::atomic<bool>* stop = nullptr);

// World 1: every operation is the identity.
std::unique_ptr<Collective> MakeSoloCollective();

// Known patterns of every size class through every operation; an error names the operation, the
// size and the first wrong element. Run by every rank at the same time, before it reports Joined.
absl::Status SelfTestCollective(Collective& collective);

}  // namespace bitshard
