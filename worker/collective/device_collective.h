// A collective between ranks that compute on devices: the host's operations (agreement, sampling),
// and sums of device memory inside a stream's work.
//
// One object is one epoch's, of one device. Used by the step thread, except Abort. What the step
// thread waits for it waits for here, never with a bare Sync: a peer that is gone leaves a stream
// that does not end by itself. A thread of the collective's own watches: when an operation is late,
// or the library reports an error, it ends the communicator; this operation, pending and later ones
// then return UNAVAILABLE with the rank, the operation and its number. When it is this rank's
// device that is lost (IsDeviceLost), they say that instead.
//
// After an error: destroy the graphs that were captured with it, then the collective. Streams end
// by themselves from then on (Sync them before their buffers are used again); what they have
// computed is undefined. Graphs are destroyed before the collective in any case: libraries wait for
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/tensor/device.h"
#include "worker/collective/collective.h"
#include "worker/collective/tell_ranks.h"

namespace bitshard {

class DeviceCollective : public Collective {
 public:
  using Collective::AllGather;
  using Collective::AllReduceSum;

  // Enqueued on `stream`, with memory of the device; the call returns before they are over. Between
  // BeginCapture and EndCapture they become part of the graph, whose every launch is then an
  // operation that all ranks do, in the same order. A count that is captured should have run once
  // outside of a capture before: the library connects what it needs at the first use.

  // Once an epoch, by all ranks at the same time: sums will be in this memory, which is of
  // AllocCollectiveMemory and of one size everywhere, at the same offset on all ranks, and enqueued
  // on `stream` alone, which outlives the collective. Where the library can, each rank then reaches
  // that of all others directly. Before such sums are captured. OK also where it cannot: the log
  // says why. What has been enqueued is waited for, a moment, when the collective ends.
  virtual absl::Status OpenWindow(const DeviceBuffer& memory, DeviceStream& stream) = 0;

  // values[i] becomes the sum over the ranks; in place. int64 wraps; the order in which floats are
  // added up is the library's, but all ranks get the same bits.
  virtual absl::Status AllReduceSum(int64_t* values, size_t count, DeviceStream& stream) = 0;
  virtual absl::Status AllReduceSum(float* values, size_t count, DeviceStream& stream) = 0;
  // all[r * bytes .. ) becomes rank r's `mine`; `all` holds world() * bytes. `mine` may be its own
  // place in `all`.
  virtual absl::Status AllGather(const void* mine, void* all, size_t bytes,
                                 DeviceStream& stream) = 0;

  // Records the event behind what the host's operations have left on a stream of the collective's
  // own; nothing where it has none.
  virtual absl::Status RecordOwnWork(DeviceEvent& /*event*/) { return absl::OkStatus(); }

  // Until the last Record of `event` has been passed, for at most the collective's operation
  // timeout, which begins anew whenever the progress word has changed. Errors of the stream's work
  // come back as they are. `meanwhile` is called before each look at the event,
  // and does not use the collective.
  virtual absl::Status Await(DeviceEvent& event, absl::FunctionRef<void()> meanwhile) = 0;
  absl::Status Await(DeviceEvent& event) {
    return Await(event, [] {});
  }

  // Pinned host memory in which the device says how far a step has come, so that a long one is not
  // taken for one that hangs. Read during calls and Await; null: none.
  virtual void SetProgressWord(const uint64_t* /*word*/) {}
  // The epoch has begun: what its steps use has been used once, with all connections made.
  virtual void SetConnected() {}

  DeviceCollective* device_collective() final { return this; }
};

// World 1: every operation is the identity; Await has no limit of time but Abort.
std::unique_ptr<DeviceCollective> MakeSoloDeviceCollective(Device* device);

struct DeviceGroup {
  std::string id;  // the same on all ranks, and new for every epoch
  uint64_t epoch = 0;
  int rank = 0, world = 1;
  TellRanksFn tell;          // carries what the ranks must know of each other
  Device* device = nullptr;  // outlives the collective
  // What an operation may take, the waiting for other ranks included; of a step with a progress
  // word, what it may take from one change to the next. Zero: kDefaultOperationTimeout.
  absl::Duration operation_timeout;
  // The same until SetConnected, where it is longer.
  absl::Duration connect_timeout;
};

// The coordinator's own patience with a step (--stall-timeout, 4 s) and some more: it sees all
// ranks and knows better who is to blame.
inline constexpr absl::Duration kDefaultOperationTimeout = absl::Seconds(6);

// Over the library `name`, "nccl"; of world 1 over none. UNAVAILABLE when not all ranks came within
// `timeout`; CANCELLED soon after another thread has set `*stop`; FAILED_PRECONDITION when the
// ranks do not fit together; UNIMPLEMENTED for a library that this program was built without.
absl::StatusOr<std::unique_ptr<DeviceCollective>> JoinDeviceCollective(
    const std::string& name, const DeviceGroup& group, absl::Duration timeout,
    const std::atomic<bool>* stop = nullptr);

// The same, but a group of one meets over the library as well: for checks of a library.
absl::StatusOr<std::unique_ptr<DeviceCollective>> JoinOverLibrary(
    const std::string& name, const DeviceGroup& group, absl::Duration timeout,
    const std::atomic<bool>* stop = nullptr);

// Memory of the device for OpenWindow, of the kind's library; where that gives none, the device's
// own, and the log says why. Outlives the collectives that have a window in it. Errors as
// Device::Alloc.
absl::StatusOr<DeviceBuffer> AllocCollectiveMemory(Device& device, size_t bytes);

// Libraries that this program was built with for that kind of device ("cuda"), sorted.
std::vector<std::string> DeviceCollectives(const std::string& device_kind);

// Which device of all hosts it is, "GPU-8f0c...", so that ranks see that they share one; "" when
// nothing here can say.
std::string DeviceIdentity(const Device& device);

// What sums lack between ranks on the first `ranks` devices of this host, of which `device` is one
// (if it is none: on all devices), or may lack where this process sees fewer; for the log. "" =
// nothing.
std::string PeerWarning(const Device& device, int ranks);

struct DeviceCollectiveLibrary {
  const char* name;         // "nccl"
  const char* device_kind;  // "cuda"
  // A group of any size.
  absl::StatusOr<std::unique_ptr<DeviceCollective>> (*join)(const DeviceGroup& group,
                                                            absl::Duration timeout,
                                                            const std::atomic<bool>* stop);
  std::string (*identify)(const Device& device);                 // DeviceIdentity
  std::string (*peer_warning)(const Device& device, int ranks);  // PeerWarning
  // AllocCollectiveMemory without the fallback.
  absl::StatusOr<DeviceBuffer> (*alloc)(Device& device, size_t bytes);
};
// Before main: `const RegisterDeviceCollective kRegistered({.name = "nccl", ...});`.
struct RegisterDeviceCollective {
  explicit RegisterDeviceCollective(const DeviceCollectiveLibrary& library);
};

}  // namespace bitshard
