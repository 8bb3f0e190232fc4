#include "tests/support/fake_cuda_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/memory.h"

namespace bitshard::fake {
namespace {

constexpr size_t kGranule = 256;

size_t RoundUp(size_t bytes, size_t granule) { return (bytes + granule - 1) / granule * granule; }

cudaError_t Gone(const char* what, const void* data, size_t bytes) {
  std::fprintf(stderr, "fake CUDA: %s of %zu bytes at %p: not all in live memory when it runs\n",
               what, bytes, data);
  return cudaErrorIllegalAddress;
}

}  // namespace

void Memory::Reset() {
  std::lock_guard<std::mutex> lock(mu_);
  CHECK(device_.empty()) << device_.size() << " device buffers were not freed";
  for (const auto& [address, pinned] : pinned_) {
    CHECK(!pinned.live) << pinned.bytes << " pinned bytes were not freed";
  }
}

int Memory::Live() {
  std::lock_guard<std::mutex> lock(mu_);
  const auto live = std::count_if(pinned_.begin(), pinned_.end(),
                                  [](const auto& entry) { return entry.second.live; });
  return static_cast<int>(device_.size() + static_cast<size_t>(live));
}

uint64_t Memory::Made() {
  std::lock_guard<std::mutex> lock(mu_);
  return made_;
}

cudaError_t Memory::Allocate(int device, size_t bytes, uint64_t budget, void** data) {
  std::lock_guard<std::mutex> lock(mu_);
  const uint64_t used = UsedLocked(device);
  if (bytes > budget || RoundUp(bytes, kGranule) > budget - used) return cudaErrorMemoryAllocation;
  void* const memory = emu::Allocate(bytes);
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  device_[memory] = {device, RoundUp(bytes, kGranule)};
  ++made_;
  *data = memory;
  return cudaSuccess;
}

cudaError_t Memory::DeviceOf(void* data, int* device) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto entry = device_.find(data);
  if (entry == device_.end()) return cudaErrorInvalidValue;
  *device = entry->second.device;
  return cudaSuccess;
}

cudaError_t Memory::Free(void* data) {
  std::lock_guard<std::mutex> lock(mu_);
  if (device_.erase(data) == 0) return cudaErrorInvalidValue;
  CHECK(emu::Free(data)) << "the emulator does not know this memory";
  return cudaSuccess;
}

uint64_t Memory::Used(int device) {
  std::lock_guard<std::mutex> lock(mu_);
  return UsedLocked(device);
}

uint64_t Memory::UsedLocked(int device) const {
  uint64_t used = 0;
  for (const auto& [address, allocation] : device_) {
    if (allocation.device == device) used += allocation.bytes;
  }
  return used;
}

cudaError_t Memory::AllocatePinned(size_t bytes, void** data) {
  const size_t mapped_bytes = RoundUp(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  if (mapped_bytes < bytes) return cudaErrorMemoryAllocation;
  void* const memory = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::lock_guard<std::mutex> lock(mu_);
  pinned_[reinterpret_cast<uintptr_t>(memory)] = {bytes, mapped_bytes, true};
  ++made_;
  *data = memory;
  return cudaSuccess;
}

cudaError_t Memory::FreePinned(void* data) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto entry = pinned_.find(reinterpret_cast<uintptr_t>(data));
  if (entry == pinned_.end() || !entry->second.live) return cudaErrorInvalidValue;
  entry->second.live = false;
  // The pages go, the addresses stay taken.
  void* const again = mmap(data, entry->second.mapped_bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, /*fd=*/-1, 0);
  CHECK(again == data);
  return cudaSuccess;
}

Place Memory::Find(const void* data, size_t bytes) {
  if (emu::IsDeviceAddress(data)) {
    return emu::IsAllocated(data, bytes) ? Place::kDevice : Place::kNowhere;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard<std::mutex> lock(mu_);
  auto entry = pinned_.upper_bound(address);
  if (entry == pinned_.begin()) return Place::kPageable;
  --entry;
  const uintptr_t offset = address - entry->first;
  const Pinned& pinned = entry->second;
  if (offset >= pinned.mapped_bytes) return Place::kPageable;
  const bool inside = offset <= pinned.bytes && bytes <= pinned.bytes - offset;
  return pinned.live && inside ? Place::kPinned : Place::kNowhere;
}

cudaError_t Memory::Copy(void* to, const void* from, size_t bytes) {
  const Place target = Find(to, bytes), source = Find(from, bytes);
  if (target == Place::kNowhere) return Gone("a copy to", to, bytes);
  if (source == Place::kNowhere) return Gone("a copy from", from, bytes);
  if (target == Place::kDevice && source == Place::kDevice) {
    emu::CopyOnDevice(to, from, bytes);
  } else if (target == Place::kDevice) {
    emu::CopyToDevice(to, from, bytes);
  } else if (source == Place::kDevice) {
    emu::CopyFromDevice(to, from, bytes);
  } else {
    std::memmove(to, from, bytes);
  }
  return cudaSuccess;
}

cudaError_t Memory::Fill(void* to, unsigned char value, size_t bytes) {
  const Place target = Find(to, bytes);
  if (target == Place::kNowhere) return Gone("a fill", to, bytes);
  if (target == Place::kDevice) {
    emu::FillOnDevice(to, value, bytes);
  } else {
    std::memset(to, value, bytes);
  }
  return cudaSuccess;
}

}  // namespace bitshard::fake
