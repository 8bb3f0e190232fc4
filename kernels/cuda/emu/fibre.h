// Fibres: the stacks on which the CUDA threads of one block run, and the switch between them.
//
// There is one set of stacks for the process, made at the first use and reused by every block; the
// caller serializes (the launch lock). A fibre that is never resumed is simply forgotten: nothing
// on its stack is destroyed.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace bitshard::emu {

struct Fibre {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  // For AddressSanitizer.
  void* fake_stack = nullptr;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
};

// Of a block.
constexpr int kMaxFibres = 1024;

// The next switch to `fibre` calls `entry` on stack number `slot`. `entry` must not return.
void PrepareFibre(Fibre* fibre, int slot, void (*entry)());

// What `entry` calls first.
void EnterFibre();

// Runs `to` until something switches back to `from`.
void SwitchFibre(Fibre* from, Fibre* to);

// Leaves the running fibre for good.
[[noreturn]] void LeaveFibre(Fibre* to);

}  // namespace bitshard::emu
