#include "worker/collective/nccl_window.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

// An older libnccl.so.2 does not have them: null at run time.
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister

namespace bitshard {
namespace {

// There are windows since 2.27, but the kernels that sum in them (2.28 to 2.30.4) begin while the
// kernel before them, launched with its dependents let go, still writes: NCCL mended that with
// commit 2948185d. Before 2.29.7 they also wait for a dead rank without end, whatever
// ncclCommAbort says.
constexpr int kFirstVersion = 23007;

// Of the process.
struct Known {
  absl::Mutex mu;
  std::set<const void*> memory ABSL_GUARDED_BY(mu);  // of ncclMemAlloc
  std::string given_up ABSL_GUARDED_BY(mu);
};
Known& TheKnown() {
  static auto* const known = new Known;
  return *known;
}

void Free(int device, void* data) {
  {
    absl::MutexLock lock(&TheKnown().mu);
    TheKnown().memory.erase(data);
  }
  cudaSetDevice(device);
  const ncclResult_t freed = ncclMemFree(data);
  if (freed != ncclSuccess)
    LogWarning("nccl: ncclMemFree: {} ({})", ncclGetErrorString(freed), ncclGetLastError(nullptr));
}

}  // namespace

absl::StatusOr<DeviceBuffer> AllocNcclMemory(Device& device, size_t bytes) {
  // Makes the device this thread's, in which NCCL finds it.
  RETURN_IF_ERROR(device.Mem().status());
  if (bytes == 0) return DeviceBuffer();
  void* data = nullptr;
  const ncclResult_t made = ncclMemAlloc(&data, bytes);
  if (made != ncclSuccess) {
    (void)cudaGetLastError();  // it is said here
    RETURN_IF_ERROR(device.Mem().status());
    return absl::UnavailableError(absl::StrCat("ncclMemAlloc of ", bytes,
                                               " bytes: ", ncclGetErrorString(made), " (",
                                               ncclGetLastError(nullptr), ")"));
  }
  {
    absl::MutexLock lock(&TheKnown().mu);
    TheKnown().memory.insert(data);
  }
  return DeviceBuffer(data, bytes,
                      [index = device.facts().index](void* gone) { Free(index, gone); });
}

std::string NcclWindow::WhyNot(const DeviceBuffer& memory) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version < kFirstVersion ||
      ncclCommWindowRegister == nullptr || ncclCommWindowDeregister == nullptr) {
    return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                        " is older than 2.30.7, whose windows are the first that are sound");
  }
  absl::MutexLock lock(&TheKnown().mu);
  if (!TheKnown().given_up.empty())
    return absl::StrCat("not tried again after: ", TheKnown().given_up);
  if (TheKnown().memory.count(memory.data()) == 0) return "the memory is not of ncclMemAlloc";
  return "";
}

void NcclWindow::GiveUp(const std::string& why) {
  absl::MutexLock lock(&TheKnown().mu);
  TheKnown().given_up = why;
}

ncclResult_t NcclWindow::Open(ncclComm_t communicator, const DeviceBuffer& memory) {
  return ncclCommWindowRegister(communicator, memory.data(), memory.bytes(), &handle_,
                                NCCL_WIN_COLL_SYMMETRIC);
}

ncclResult_t NcclWindow::Close(ncclComm_t communicator) {
  return ncclCommWindowDeregister(communicator, std::exchange(handle_, nullptr));
}

}  // namespace bitshard
