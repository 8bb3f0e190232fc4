// The memory of the fake CUDA runtime (fake_cudart.h): budgets, which address is what, copies.
// Device memory is the emulator's; pinned memory has pages of its own. Addresses are never used
// again, so work that comes too late finds that its memory is gone. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <driver_types.h>
#include <map>
#include <mutex>

namespace bitshard::fake {

enum class Place {
  kDevice,
  kPinned,
  kPageable,
  kNowhere,  // freed, or not all of it in one allocation
};

class Memory {
 public:
  // CHECKs that nothing lives.
  void Reset();
  int Live();
  uint64_t Made();  // so far

  // `budget`: bytes of the device. cudaErrorMemoryAllocation beyond it.
  cudaError_t Allocate(int device, size_t bytes, uint64_t budget, void** data);
  // Which device's; cudaErrorInvalidValue: not the start of a live allocation.
  cudaError_t DeviceOf(void* data, int* device);
  cudaError_t Free(void* data);
  uint64_t Used(int device);

  cudaError_t AllocatePinned(size_t bytes, void** data);
  cudaError_t FreePinned(void* data);

  Place Find(const void* data, size_t bytes);
  // Now. Memory that is gone: a line on stderr, and cudaErrorIllegalAddress.
  cudaError_t Copy(void* to, const void* from, size_t bytes);
  cudaError_t Fill(void* to, unsigned char value, size_t bytes);

 private:
  struct Allocation {
    int device;
    size_t bytes;  // of the budget
  };
  struct Pinned {
    size_t bytes;  // as asked
    size_t mapped_bytes;
    bool live;
  };

  uint64_t UsedLocked(int device) const;

  std::mutex mu_;
  std::map<void*, Allocation> device_;
  std::map<uintptr_t, Pinned> pinned_;
  uint64_t made_ = 0;
};

}  // namespace bitshard::fake
