// What the accesses of a kernel call in a check build. The kernel is compiled with
// -fsanitize=thread but linked with these functions in place of libtsan; a newer compiler that asks
// for more of them fails to link. Host code of the same file calls them too: its addresses are not
// the device's and are ignored.
#include "kernels/cuda/emu/checks.h"

namespace bitshard::emu {
namespace {

[[maybe_unused]] const bool kEnabled = (EnableAccessChecks(), true);

}  // namespace
}  // namespace bitshard::emu

// Always called from the kernel's code: the return address is the accessing instruction.
#define BITSHARD_HOOKS(bytes)                                                     \
  void __tsan_read##bytes(const void* address) {                                  \
    bitshard::emu::CheckAccess(address, bytes, bitshard::emu::AccessKind::kRead,  \
                               __builtin_return_address(0));                      \
  }                                                                               \
  void __tsan_write##bytes(const void* address) {                                 \
    bitshard::emu::CheckAccess(address, bytes, bitshard::emu::AccessKind::kWrite, \
                               __builtin_return_address(0));                      \
  }                                                                               \
  void __tsan_unaligned_read##bytes(const void* address) {                        \
    bitshard::emu::CheckAccess(address, bytes, bitshard::emu::AccessKind::kRead,  \
                               __builtin_return_address(0));                      \
  }                                                                               \
  void __tsan_unaligned_write##bytes(const void* address) {                       \
    bitshard::emu::CheckAccess(address, bytes, bitshard::emu::AccessKind::kWrite, \
                               __builtin_return_address(0));                      \
  }

extern "C" {
BITSHARD_HOOKS(1)
BITSHARD_HOOKS(2)
BITSHARD_HOOKS(4)
BITSHARD_HOOKS(8)
BITSHARD_HOOKS(16)
void __tsan_read_range(const void* address, unsigned long bytes) {
  bitshard::emu::CheckAccess(address, static_cast<int>(bytes), bitshard::emu::AccessKind::kRead,
                             __builtin_return_address(0));
}
void __tsan_write_range(const void* address, unsigned long bytes) {
  bitshard::emu::CheckAccess(address, static_cast<int>(bytes), bitshard::emu::AccessKind::kWrite,
                             __builtin_return_address(0));
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
}
