#include "kernels/cuda/emu/memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/arena.h"
#include "kernels/cuda/emu/checks.h"
#include "kernels/cuda/emu/device_access.h"
#include "kernels/cuda/emu/poison.h"
#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {
namespace {

constexpr size_t kArenaBytes = size_t{16} << 30;
// The checks' maps are 25 times as large.
constexpr size_t kCheckArenaBytes = size_t{4} << 30;
constexpr size_t kAlignment = 256;
constexpr size_t kGapBytes = 256;
constexpr size_t kMaxPoison = size_t{64} << 20;

struct Allocation {
  size_t bytes;
  bool live;
};

// All under LaunchLock().
std::map<size_t, Allocation> allocations;  // by offset
size_t arena_top = kGapBytes;
bool protects = false;
int open_accesses = 0;

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t OffsetOf(const void* address) {
  return static_cast<size_t>(reinterpret_cast<uintptr_t>(address) -
                             reinterpret_cast<uintptr_t>(Arena().base));
}

void SetProtection(int protection) {
  const size_t bytes = (arena_top + PageBytes() - 1) / PageBytes() * PageBytes();
  CHECK_EQ(mprotect(Arena().base, bytes, protection), 0);
}

// The allocation at or before the offset.
std::map<size_t, Allocation>::iterator Before(size_t offset) {
  auto next = allocations.upper_bound(offset);
  return next == allocations.begin() ? allocations.end() : std::prev(next);
}

bool IsLive(size_t offset, size_t bytes) {
  const auto at = Before(offset);
  return at != allocations.end() && at->second.live && offset - at->first <= at->second.bytes &&
         bytes <= at->second.bytes - (offset - at->first);
}

// True: the range can be copied. False, and a finding.
bool CheckCopy(const void* device, size_t bytes, const char* what) {
  if (IsLive(OffsetOf(device), bytes)) return true;
  launch.kernel = "a copy by the host";
  Report(FindingKind::kBadCopy, Where(),
         std::string(what) + " of " + std::to_string(bytes) + " bytes at " +
             DescribeDeviceAddress(device));
  return false;
}

}  // namespace

const DeviceArena& Arena() {
  static const DeviceArena arena = [] {
    const size_t bytes = ChecksAccesses() ? kCheckArenaBytes : kArenaBytes;
    return DeviceArena{static_cast<char*>(ReserveAddresses(bytes, "device memory")), bytes};
  }();
  return arena;
}

void* ReserveAddresses(size_t bytes, const char* what) {
  void* const addresses = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(addresses != MAP_FAILED) << "no " << (bytes >> 20) << " MiB of address space for " << what
                                 << " of the CUDA emulator; is there a limit (ulimit -v)?";
  return addresses;
}

std::string DescribeDeviceAddress(const void* address) {
  const size_t offset = OffsetOf(address);
  if (offset >= Arena().bytes) return "an address that is not the device's";
  const auto at = Before(offset);
  if (at == allocations.end()) return "an address before every allocation";
  const auto& [start, allocation] = *at;
  const std::string whose =
      std::to_string(allocation.bytes) + " bytes" + (allocation.live ? "" : ", which was freed");
  if (offset < start + allocation.bytes)
    return "offset " + std::to_string(offset - start) + " of an allocation of " + whose;
  return std::to_string(offset - start - allocation.bytes) + " bytes behind an allocation of " +
         whose;
}

DeviceAccess::DeviceAccess() {
  if (open_accesses++ == 0 && protects) SetProtection(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  if (--open_accesses == 0 && protects) SetProtection(PROT_NONE);
}

void* Allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  const DeviceAccess access;
  const size_t used = std::max<size_t>(bytes, 1);
  const DeviceArena& arena = Arena();
  if (used > arena.bytes - arena_top ||
      arena.bytes - arena_top - used < kAlignment + kGapBytes + PageBytes())
    return nullptr;
  const size_t offset = arena_top;
  char* const memory = arena.base + offset;
  arena_top += (used + kAlignment - 1) / kAlignment * kAlignment + kGapBytes;
  allocations[offset] = {used, true};
  Poison(memory, std::min(used, kMaxPoison));
  ForbidAddressSanitizer(memory + used, arena_top - offset - used);
  MarkDevice(offset, used, kUnwritten);
  return memory;
}

bool Free(void* address) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  const auto at = allocations.find(OffsetOf(address));
  if (at == allocations.end() || !at->second.live) return false;
  const DeviceAccess access;
  at->second.live = false;
  const size_t offset = at->first, bytes = at->second.bytes;
  MarkDevice(offset, bytes, kFreed);
  ForgetDevice(offset, bytes);
  ForbidAddressSanitizer(address, bytes);
  // Gives whole pages back; the addresses stay taken.
  const size_t first = (offset + PageBytes() - 1) / PageBytes() * PageBytes();
  const size_t last = (offset + bytes) / PageBytes() * PageBytes();
  if (first < last) madvise(Arena().base + first, last - first, MADV_DONTNEED);
  return true;
}

bool IsDeviceAddress(const void* address) { return OffsetOf(address) < Arena().bytes; }

bool IsAllocated(const void* address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  return IsDeviceAddress(address) && IsLive(OffsetOf(address), bytes);
}

void CopyToDevice(void* device, const void* host, size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  if (bytes == 0 || !CheckCopy(device, bytes, "to the device")) return;
  const DeviceAccess access;
  std::memcpy(device, host, bytes);
  MarkDeviceWrittenByHost(OffsetOf(device), bytes);
}

void CopyFromDevice(void* host, const void* device, size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  if (bytes == 0 || !CheckCopy(device, bytes, "from the device")) return;
  const DeviceAccess access;
  if (DeviceHasUnwritten(OffsetOf(device), bytes)) {
    launch.kernel = "a copy by the host";
    Report(FindingKind::kUninitialized, Where(),
           "of " + std::to_string(bytes) +
               " bytes to the host, some were never written: " + DescribeDeviceAddress(device));
  }
  std::memcpy(host, device, bytes);
}

void CopyOnDevice(void* to, const void* from, size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  if (bytes == 0 || !CheckCopy(from, bytes, "on the device, from") ||
      !CheckCopy(to, bytes, "on the device, to"))
    return;
  const DeviceAccess access;
  std::memmove(to, from, bytes);
  CopyDeviceMarks(OffsetOf(to), OffsetOf(from), bytes);
}

void FillOnDevice(void* device, unsigned char value, size_t bytes) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  if (bytes == 0 || !CheckCopy(device, bytes, "a fill")) return;
  const DeviceAccess access;
  std::memset(device, value, bytes);
  MarkDeviceWrittenByHost(OffsetOf(device), bytes);
}

void ProtectDeviceMemory(bool protect) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  if (protect == protects) return;
  protects = protect;
  SetProtection(protect ? PROT_NONE : PROT_READ | PROT_WRITE);
}

}  // namespace bitshard::emu
