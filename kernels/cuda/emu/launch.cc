// Launches: the blocks of a grid one after another, the threads of a block by turns.
//
// A thread runs until it has to wait (a collective of its warp, a barrier, its end) and then hands
// over directly to the next that can run; the host's stack is resumed only when none can. The last
// thread to arrive at a barrier or in a collective completes it for all and goes on.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/checks.h"
#include "kernels/cuda/emu/count.h"
#include "kernels/cuda/emu/device_access.h"
#include "kernels/cuda/emu/races.h"
#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {

BlockIds block_ids;
const uint3* thread_index = nullptr;
LaunchState launch;
constinit Thread* running = nullptr;

namespace {

constexpr size_t kMaxDynamicShared = 227 << 10;

constinit Options options;

uint64_t NextRandom() {
  launch.random ^= launch.random << 13;
  launch.random ^= launch.random >> 7;
  launch.random ^= launch.random << 17;
  return launch.random;
}

Thread* PickLane(int warp) {
  const uint32_t ready = launch.warp_state[warp].ready;
  int lane = std::countr_zero(ready);
  if (launch.options.order == Order::kBackward) lane = 31 - std::countl_zero(ready);
  if (launch.options.order == Order::kShuffled) {
    const int first = static_cast<int>(NextRandom() >> 40) & 31;
    lane = (std::countr_zero(std::rotr(ready, first)) + first) & 31;
  }
  return &launch.thread[warp * kWarpLanes + lane];
}

// The next thread to run; nullptr: none can.
Thread* PickThread() {
  const int step = launch.options.order == Order::kBackward ? launch.warps - 1 : 1;
  if (launch.options.order == Order::kShuffled)
    launch.warp = static_cast<int>((NextRandom() >> 32) % static_cast<uint64_t>(launch.warps));
  for (int tried = 0; tried < launch.warps; ++tried) {
    if (launch.warp_state[launch.warp].ready != 0) return PickLane(launch.warp);
    launch.warp += step;
    if (launch.warp >= launch.warps) launch.warp -= launch.warps;
  }
  return nullptr;
}

Fibre* NextFibre() {
  running = PickThread();
  if (running == nullptr) return &launch.host;
  thread_index = &running->index;
  return &running->fibre;
}

void CompleteBarrier() {
  const Thread* first = nullptr;
  bool same = true;
  for (int i = 0; i < launch.threads; ++i) {
    Thread& thread = launch.thread[i];
    if (thread.state != ThreadState::kAtBarrier) continue;
    if (first == nullptr) first = &thread;
    same = same && SamePlace(first->where, thread.where);
    thread.result = static_cast<uint64_t>(launch.predicates);
    ++thread.block_epoch;
    MakeReady(&thread);
  }
  if (!same || launch.exited > 0) {
    Report(FindingKind::kDivergentBarrier, first->where,
           std::to_string(launch.at_barrier) + " of " + std::to_string(launch.threads) +
               " threads are at a barrier, " + std::to_string(launch.exited) + " have exited" +
               (same ? "" : ", and not all are at the same one"));
  }
  CountBarrier();
  launch.acquired = launch.acquiring;
  launch.at_barrier = 0;
  launch.predicates = 0;
}

bool BarrierIsComplete() {
  return launch.at_barrier > 0 && launch.at_barrier + launch.exited == launch.threads;
}

void ThreadMain() {
  EnterFibre();
  launch.body(launch.body_context);
  Thread* const self = running;
  std::vector<AsyncCopy>& copies = launch.copies[self->linear];
  if (!copies.empty()) {
    Report(FindingKind::kAsyncNotWaited, copies[0].where,
           "a thread exits with " + std::to_string(copies.size()) +
               " copies that it has not waited for");
    copies.clear();
  }
  self->state = ThreadState::kExited;
  launch.warp_state[self->warp].ready &= ~(1u << self->lane);
  ++launch.exited;
  if (BarrierIsComplete()) CompleteBarrier();
  LeaveFibre(NextFibre());
}

void StartThreads() {
  const dim3 size = launch.shape.block;
  for (int i = 0; i < launch.threads; ++i) {
    Thread& thread = launch.thread[i];
    thread.index.x = static_cast<unsigned>(i) % size.x;
    thread.index.y = static_cast<unsigned>(i) / size.x % size.y;
    thread.index.z = static_cast<unsigned>(i) / (size.x * size.y);
    thread.linear = static_cast<uint16_t>(i);
    thread.lane = static_cast<uint8_t>(i % kWarpLanes);
    thread.warp = static_cast<uint8_t>(i / kWarpLanes);
    thread.state = ThreadState::kReady;
    thread.block_epoch = 0;
    thread.warp_epoch = 0;
    thread.fence_epoch = 0;
    thread.acquired = false;
    thread.waited_for_previous = !launch.shape.overlaps_previous;
    thread.copy_group = 0;
    PrepareFibre(&thread.fibre, i, &ThreadMain);
  }
  for (int warp = 0; warp < launch.warps; ++warp) {
    const int lanes = std::min(kWarpLanes, launch.threads - warp * kWarpLanes);
    const uint32_t mask = lanes == kWarpLanes ? ~0u : (1u << lanes) - 1;
    launch.warp_state[warp] = {.lanes = mask, .ready = mask, .meeting = 0};
  }
  launch.exited = launch.at_barrier = launch.predicates = 0;
  launch.acquiring = launch.acquired = launch.trapped = false;
  launch.warp = launch.options.order == Order::kBackward ? launch.warps - 1 : 0;
}

// Nobody can run and not all have exited: some wait in a collective for lanes that do not come.
void ReportDeadlock() {
  for (int i = 0; i < launch.threads; ++i) {
    const Thread& thread = launch.thread[i];
    if (thread.state != ThreadState::kInWarp) continue;
    int exited = 0, at_barrier = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if ((thread.mask & launch.warp_state[thread.warp].lanes & (1u << lane)) == 0) continue;
      const ThreadState state = launch.thread[thread.warp * kWarpLanes + lane].state;
      exited += state == ThreadState::kExited;
      at_barrier += state == ThreadState::kAtBarrier;
    }
    Report(FindingKind::kDeadlock, thread.where,
           "thread " + std::to_string(i) +
               " waits in a collective of its warp for lanes of which " + std::to_string(exited) +
               " have exited and " + std::to_string(at_barrier) + " wait at a barrier");
    return;
  }
}

// False: the block can never end.
bool RunBlock() {
  StartBlockShared();
  StartThreads();
  SwitchFibre(&launch.host, NextFibre());
  EndBlockCounts();
  if (launch.exited == launch.threads) return true;
  if (!launch.trapped) ReportDeadlock();
  for (int i = 0; i < launch.threads; ++i) launch.copies[i].clear();
  return false;
}

uint64_t Volume(const dim3& size) { return uint64_t{size.x} * size.y * size.z; }

}  // namespace

std::mutex& LaunchLock() {
  static std::mutex lock;
  return lock;
}

void SetOptions(const Options& new_options) {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  options = new_options;
}

Options GetOptions() {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  return options;
}

bool SamePlace(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

void WaitForTurn() {
  Thread* const self = running;
  Fibre* const next = NextFibre();
  if (next != &self->fibre) SwitchFibre(&self->fibre, next);
}

int SyncBlockCount(bool predicate, const Where& where) {
  Thread* const self = running;
  self->where = where;
  self->state = ThreadState::kAtBarrier;
  launch.warp_state[self->warp].ready &= ~(1u << self->lane);
  launch.predicates += predicate;
  ++launch.at_barrier;
  if (BarrierIsComplete()) {
    CompleteBarrier();
  } else {
    WaitForTurn();
  }
  return static_cast<int>(self->result);
}

void SyncBlock(const Where& where) { SyncBlockCount(false, where); }

void AcquireGrid() {
  running->acquired = true;
  launch.acquiring = true;
}

void FenceGrid() { running->fence_epoch = running->block_epoch + 1; }

void WaitForPreviousKernel() { running->waited_for_previous = true; }

void Trap(const Where& where) {
  Report(FindingKind::kTrap, where, "thread " + std::to_string(running->linear) + " traps");
  launch.trapped = true;
  LeaveFibre(&launch.host);  // the launch ends here, as it does on the device
}

cudaError_t CheckLaunch(const LaunchShape& shape) {
  const dim3 &grid = shape.grid, &block = shape.block;
  const bool grid_fits =
      Volume(grid) > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535;
  const bool block_fits = Volume(block) > 0 && Volume(block) <= kMaxThreads && block.x <= 1024 &&
                          block.y <= 1024 && block.z <= 64;
  if (!grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
  if (shape.dynamic_shared_bytes > kMaxDynamicShared) return cudaErrorInvalidValue;
  return cudaSuccess;
}

void RunKernel(const char* kernel, const LaunchShape& shape, const std::function<void()>& body) {
  CHECK_EQ(CheckLaunch(shape), cudaSuccess);
  const std::lock_guard<std::mutex> lock(LaunchLock());
  const DeviceAccess access;
  launch.kernel = kernel;
  launch.host = {};
  launch.shape = shape;
  launch.options = options;
  launch.body = [](void* context) { (*static_cast<const std::function<void()>*>(context))(); };
  launch.body_context = const_cast<std::function<void()>*>(&body);
  launch.random = options.seed * 0x9e3779b97f4a7c15u + 1;
  launch.threads = static_cast<int>(Volume(shape.block));
  launch.warps = (launch.threads + kWarpLanes - 1) / kWarpLanes;
  ++launch.serial;
  CountLaunch();
  StartRaces();
  block_ids.size = shape.block;
  block_ids.grid = shape.grid;
  bool ends = true;
  uint32_t number = 0;
  for (unsigned z = 0; z < shape.grid.z && ends; ++z) {
    for (unsigned y = 0; y < shape.grid.y && ends; ++y) {
      for (unsigned x = 0; x < shape.grid.x && ends; ++x) {
        block_ids.index.x = x;
        block_ids.index.y = y;
        block_ids.index.z = z;
        launch.block_number = number++;
        ++launch.block_serial;
        launch.checking = ChecksAccesses();
        ends = RunBlock();
        launch.checking = false;
      }
    }
  }
  running = nullptr;
}

}  // namespace bitshard::emu
