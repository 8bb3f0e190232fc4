// The emulator's inside: the running launch, its block and its threads. Included by the emulator's
// own sources only.
//
// Everything here is guarded by LaunchLock(), which RunKernel holds for a whole launch.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/emu/core.h"
#include "kernels/cuda/emu/fibre.h"
#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/options.h"

namespace bitshard::emu {

constexpr int kWarpLanes = 32;
constexpr int kMaxThreads = kMaxFibres;
constexpr int kMaxWarps = kMaxThreads / kWarpLanes;

enum class ThreadState : uint8_t { kReady, kInWarp, kAtBarrier, kExited };

// A cp.async that has not landed.
struct AsyncCopy {
  void* to;
  const void* from;
  int bytes;
  int group;
  const void* pc;
  Where where;
};

struct Thread {
  Fibre fibre;
  uint3 index;
  uint16_t linear;
  uint8_t lane;
  uint8_t warp;
  ThreadState state;
  // What it waits in.
  Collective collective;
  bool predicate;
  uint32_t mask;
  uint64_t value;
  uint64_t result;
  int argument;
  int width;
  Where where;
  void* d;
  const uint32_t* a;
  const uint32_t* b;
  const void* row;
  // For the checks. Epochs count the barriers of the block and the __syncwarps of the warp.
  uint32_t block_epoch;
  uint32_t warp_epoch;
  uint32_t fence_epoch;  // block_epoch + 1 at the last fence; 0: none
  bool acquired;
  bool waited_for_previous;
  int copy_group;
};

struct Warp {
  uint32_t lanes;    // that exist
  uint32_t ready;    // that can run
  uint32_t meeting;  // that wait in a collective
};

// One launch, and the block of it that is running.
struct LaunchState {
  const char* kernel = "";
  LaunchShape shape = {};
  Options options;
  void (*body)(void*) = nullptr;
  void* body_context = nullptr;
  uint32_t serial = 0;        // of launches, from 1
  uint64_t block_serial = 0;  // of blocks over all launches, from 1
  uint32_t block_number = 0;  // in the grid
  int threads = 0;
  int warps = 0;
  int warp = 0;  // whose turn it is
  int exited = 0;
  int at_barrier = 0;
  int predicates = 0;      // that held at the barrier so far
  bool acquiring = false;  // a thread of the block has acquired...
  bool acquired = false;   // ... and a barrier has passed it on to all
  uint64_t random = 0;
  bool trapped = false;
  bool checking = false;  // accesses are checked now
  Thread thread[kMaxThreads];
  Warp warp_state[kMaxWarps];
  std::vector<AsyncCopy> copies[kMaxThreads];
  Fibre host;
};

std::mutex& LaunchLock();
extern LaunchState launch;
extern Thread* running;  // nullptr outside launches

// Lets another thread run; returns when `running` is ready again.
void WaitForTurn();
inline void MakeReady(Thread* thread) {
  thread->state = ThreadState::kReady;
  launch.warp_state[thread->warp].ready |= 1u << thread->lane;
  launch.warp_state[thread->warp].meeting &= ~(1u << thread->lane);
}
bool SamePlace(const Where& a, const Where& b);

// shared_memory.cc
void StartBlockShared();
constexpr size_t kSharedArenaBytes = 512 << 10;
char* SharedArena();
// Whether the bytes lie in the part of it that the block uses.
bool IsSharedAddress(const void* address, size_t bytes);

// findings.cc. A finding at a call of the language layer, or at an instruction.
void Report(FindingKind kind, const Where& where, const std::string& text);
void ReportAt(FindingKind kind, const void* pc, const std::string& text);
// "file.cu:12" of an instruction; the kernel's line where an inline function of ours was expanded.
std::string PlaceOf(const void* pc);
std::string PlaceOf(const Where& where);

}  // namespace bitshard::emu
