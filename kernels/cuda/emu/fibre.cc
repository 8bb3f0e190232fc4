#include "kernels/cuda/emu/fibre.h"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a call keeps, exchanges the stacks, restores, and jumps to the saved
// return address: through a register, because a `ret` to another stack's caller defeats the return
// predictor and costs five times as much.
extern "C" void bitshard_emu_switch(void** save, void* load);
asm(R"(
.text
.globl bitshard_emu_switch
.type bitshard_emu_switch, @function
bitshard_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size bitshard_emu_switch, .-bitshard_emu_switch
)");
#endif

namespace bitshard::emu {
namespace {

constexpr size_t kStackBytes = 128 << 10;
// The hot ends of the stacks lie in different cache sets: neighbours are 9 lines apart.
constexpr size_t kColourBytes = 9 * 64;
constexpr int kColours = 32;

// One mapping, the lowest page of each stack inaccessible: an overflow dies at once.
char* Stacks() {
  static char* const stacks = [] {
    void* const memory = mmap(nullptr, kStackBytes * kMaxFibres, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED) << "no address space for the stacks of emulated threads";
    char* const first = static_cast<char*>(memory);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (int slot = 0; slot < kMaxFibres; ++slot)
      CHECK_EQ(mprotect(first + kStackBytes * slot, page, PROT_NONE), 0);
    return first;
  }();
  return stacks;
}

void FinishSwitch(void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  (void)fake_stack;
#endif
}

void StartSwitch(void** fake_stack, const Fibre* to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, to->stack, to->stack_bytes);
#else
  (void)fake_stack;
  (void)to;
#endif
}

#if defined(__SANITIZE_ADDRESS__)
// The stack of the thread that launches: where a fibre switches back to.
void DescribeOwnStack(Fibre* fibre) {
  if (fibre->stack != nullptr) return;
  pthread_attr_t attributes;
  void* stack = nullptr;
  CHECK_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  CHECK_EQ(pthread_attr_getstack(&attributes, &stack, &fibre->stack_bytes), 0);
  pthread_attr_destroy(&attributes);
  fibre->stack = stack;
}
#else
void DescribeOwnStack(Fibre*) {}
#endif

}  // namespace

void PrepareFibre(Fibre* fibre, int slot, void (*entry)()) {
  char* const stack = Stacks() + kStackBytes * slot;
  char* const top = stack + kStackBytes - kColourBytes * (slot % kColours);
  fibre->stack = stack;
  fibre->stack_bytes = kStackBytes;
  fibre->fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  // Frames of the last block may have been left as they were.
  __asan_unpoison_memory_region(stack + sysconf(_SC_PAGESIZE), kStackBytes - sysconf(_SC_PAGESIZE));
#endif
#if defined(__x86_64__)
  void** pointer = reinterpret_cast<void**>(top);
  *--pointer = nullptr;  // where a return address would be: entry sees an aligned stack
  *--pointer = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--pointer = nullptr;  // the saved registers
  fibre->stack_pointer = pointer;
#else
  CHECK_EQ(getcontext(&fibre->context), 0);
  fibre->context.uc_stack.ss_sp = stack;
  fibre->context.uc_stack.ss_size = static_cast<size_t>(top - stack);
  fibre->context.uc_link = nullptr;
  makecontext(&fibre->context, entry, 0);
#endif
}

void EnterFibre() { FinishSwitch(nullptr); }

void SwitchFibre(Fibre* from, Fibre* to) {
  DescribeOwnStack(from);
  StartSwitch(&from->fake_stack, to);
#if defined(__x86_64__)
  bitshard_emu_switch(&from->stack_pointer, to->stack_pointer);
#else
  swapcontext(&from->context, &to->context);
#endif
  FinishSwitch(from->fake_stack);
}

void LeaveFibre(Fibre* to) {
  StartSwitch(nullptr, to);
#if defined(__x86_64__)
  void* forgotten;
  bitshard_emu_switch(&forgotten, to->stack_pointer);
#else
  setcontext(&to->context);
#endif
  std::abort();
}

}  // namespace bitshard::emu
