// Shared memory of the running block, and the cp.async copies into it.
//
// Arrays are laid out as the block's threads first reach their declarations, each at a multiple of
// 128 bytes (a row of banks) and with at least 128 bytes that belong to nobody behind it. New
// memory holds 0xffab in every 16 bits.
#include <algorithm>
#include <cstring>
#include <string>
#include <sys/mman.h>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/checks.h"
#include "kernels/cuda/emu/poison.h"
#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {
namespace {

constexpr size_t kBankRowBytes = 128;
constexpr size_t kMaxStatic = 48 << 10;
constexpr size_t kMaxBlock = 227 << 10;

struct SharedLayout {
  size_t end = 0;  // of the arena's part in use
  size_t static_bytes = 0;
  size_t dynamic_bytes = 0;
  void* dynamic = nullptr;
};
SharedLayout layout;

void* NewArray(size_t bytes) {
  const size_t offset = layout.end;
  layout.end += (bytes + kBankRowBytes - 1) / kBankRowBytes * kBankRowBytes + kBankRowBytes;
  CHECK_LE(layout.end, kSharedArenaBytes) << "emulated shared memory of kernel " << launch.kernel;
  char* const array = SharedArena() + offset;
  AllowAddressSanitizer(array, bytes);
  Poison(array, bytes);
  SharedArrayStarts(offset, bytes);
  return array;
}

void Land(const AsyncCopy& copy) {
  CheckAccess(copy.from, copy.bytes, AccessKind::kRead, copy.pc);
  CheckAccess(copy.to, 16, AccessKind::kWrite, copy.pc);
  std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, static_cast<size_t>(16 - copy.bytes));
}

}  // namespace

char* SharedArena() {
  static char* const arena = [] {
    void* const memory = mmap(nullptr, kSharedArenaBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED) << "no memory for emulated shared memory";
    ForbidAddressSanitizer(memory, kSharedArenaBytes);
    return static_cast<char*>(memory);
  }();
  return arena;
}

bool IsSharedAddress(const void* address, size_t bytes) {
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(SharedArena());
  return offset < layout.end && offset + bytes <= layout.end;
}

void StartBlockShared() {
  ForbidAddressSanitizer(SharedArena(), layout.end);
  SharedArraysEnd(layout.end);
  layout = {};
}

void* SharedArray(SharedSite* site, size_t bytes, const Where& where) {
  if (site->block == launch.block_serial) return site->address;
  layout.static_bytes += (bytes + 15) / 16 * 16;
  if (layout.static_bytes > kMaxStatic ||
      layout.static_bytes + launch.shape.dynamic_shared_bytes > kMaxBlock) {
    Report(FindingKind::kSharedLimit, where,
           std::string(site->name) + " makes it " + std::to_string(layout.static_bytes) +
               " bytes of static and " + std::to_string(launch.shape.dynamic_shared_bytes) +
               " of dynamic shared memory; a block can have " + std::to_string(kMaxStatic) +
               " static, " + std::to_string(kMaxBlock) + " in all");
  }
  site->block = launch.block_serial;
  site->address = NewArray(bytes);
  return site->address;
}

void* DynamicShared() {
  if (layout.dynamic == nullptr)
    layout.dynamic = NewArray(std::max<size_t>(launch.shape.dynamic_shared_bytes, 1));
  return layout.dynamic;
}

void CopyAsync(void* shared, const void* source, int bytes, const Where& where) {
  Thread* const self = running;
  if (((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(source)) & 15) != 0)
    Report(FindingKind::kMisaligned, where, "cp.async of 16 bytes between unaligned addresses");
  if (bytes < 0 || bytes > 16) {
    Report(FindingKind::kBadArgument, where, "cp.async of " + std::to_string(bytes) + " bytes");
    bytes = std::clamp(bytes, 0, 16);
  }
  if (!IsSharedAddress(shared, 16)) {
    Report(FindingKind::kOutOfBounds, where, "cp.async to an address outside shared memory");
    return;
  }
  const void* const pc = __builtin_return_address(0);
  const AsyncCopy copy = {shared, source, bytes, self->copy_group, pc, where};
  CheckAccess(shared, 16, AccessKind::kIssue, pc);
  if (launch.options.copies_land_early) {
    Land(copy);
  } else {
    launch.copies[self->linear].push_back(copy);
  }
}

void CommitCopies() { ++running->copy_group; }

void WaitForCopies(int groups_in_flight) {
  std::vector<AsyncCopy>& copies = launch.copies[running->linear];
  const int first_in_flight = running->copy_group - groups_in_flight;
  size_t landed = 0;
  while (landed < copies.size() && copies[landed].group < first_in_flight) Land(copies[landed++]);
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(landed));
}

}  // namespace bitshard::emu
