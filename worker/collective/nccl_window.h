// Memory that is registered with NCCL (since 2.30.7). Where all GPUs reach each other's memory it
// is a "symmetric window": float sums in it go over NVLink without NCCL's own buffers. Elsewhere,
// and with NCCL_WIN_ENABLE=0, NCCL registers it on each rank alone, and does not say so. Sums of
// int64 have no such kernels in NCCL 2.30; their memory is registered all the same.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include <nccl.h>

#include "kernels/tensor/device.h"

namespace bitshard {

// Of ncclMemAlloc, the only memory that can be a window. UNAVAILABLE with NCCL's words. Freed
// before the device, after the communicators.
absl::StatusOr<DeviceBuffer> AllocNcclMemory(Device& device, size_t bytes);

// Of one communicator; used by the step thread.
class NcclWindow {
 public:
  // Why it is not to be tried with this memory, on this rank; empty: nothing is in the way.
  static std::string WhyNot(const DeviceBuffer& memory);
  // From now on WhyNot says `why`, in the whole process: a communicator may not survive an attempt.
  static void GiveUp(const std::string& why);

  // REQUIRES: WhyNot is empty, and all ranks do it. Success says little: it goes on until the
  // communicator's state is not "in progress", and may then have registered nothing.
  ncclResult_t Open(ncclComm_t communicator, const DeviceBuffer& memory);
  // Registered, as a symmetric window or not.
  bool is_open() const { return handle_ != nullptr; }
  // Once nothing on the device uses it any more. The communicator's end does it too.
  ncclResult_t Close(ncclComm_t communicator);

 private:
  ncclWindow_t handle_ = nullptr;  // NCCL writes it, also after Open has returned
};

}  // namespace bitshard
