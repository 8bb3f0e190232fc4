#include "kernels/cuda/emu/races.h"

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/cuda/emu/arena.h"

// The linker's: where instruction addresses count from.
extern "C" const char __executable_start[];

namespace bitshard::emu {
namespace {

constexpr int kBlockShift = 10;  // a thread's id is its block's number and its own in the block
constexpr int kWarpShift = 5;
constexpr size_t kDeviceGranule = 2;  // bytes a record

// When a thread did something.
struct Clock {
  uint32_t thread;
  uint16_t block_epoch;
  uint16_t warp_epoch;
};

struct Record {
  uint32_t generation : 28;  // launch or, in shared memory, block of which the rest tells
  uint32_t written : 1;
  uint32_t atomic : 1;  // and that write was
  uint32_t read : 1;
  uint32_t by_kernel : 1;  // some launch wrote it
  uint32_t writer_pc;
  Clock writer;
  Clock reader;        // the newest
  Clock other_reader;  // of another warp if there is one, else of another lane
};
static_assert(sizeof(Record) == 32);

Record shared_records[kSharedArenaBytes];

Record* DeviceRecords() {
  static Record* const records = static_cast<Record*>(ReserveAddresses(
      Arena().bytes / kDeviceGranule * sizeof(Record), "the records of device memory"));
  return records;
}

// What a block has made visible to others. Rewritten by each of its releases.
struct Release {
  uint32_t launch = 0;
  uint32_t linear = 0;                 // the releasing thread
  uint32_t epoch = 0;                  // its block_epoch at the atomic
  uint32_t fence_epoch = 0;            // block_epoch + 1 at its last fence
  std::vector<uint32_t> fence_epochs;  // of all threads of the block
};
std::vector<Release> releases;  // by block number

bool IsPublished(const Clock& then) {
  const uint32_t block = then.thread >> kBlockShift;
  if (block >= releases.size() || releases[block].launch != launch.serial) return false;
  const Release& release = releases[block];
  const uint32_t linear = then.thread & (kMaxThreads - 1);
  if (linear == release.linear) return true;
  if (then.block_epoch + 1u < release.fence_epoch) return true;
  const uint32_t own_fence = release.fence_epochs[linear];
  return own_fence > then.block_epoch && own_fence <= release.epoch;
}

// Whether what a thread did then comes before what the running thread does now.
bool IsBefore(const Clock& then, const Clock& now) {
  if (then.thread == now.thread) return true;
  if (then.thread >> kBlockShift != now.thread >> kBlockShift)
    return (running->acquired || launch.acquired) && IsPublished(then);
  if (then.block_epoch < now.block_epoch) return true;
  return then.thread >> kWarpShift == now.thread >> kWarpShift && then.warp_epoch < now.warp_epoch;
}

void RememberRead(Record* record, const Clock& now) {
  Clock &reader = record->reader, &other = record->other_reader;
  if (!record->read) {
    record->read = 1;
    reader = other = now;
    return;
  }
  const auto same = [&now](const Clock& clock, int shift) {
    return clock.thread >> shift == now.thread >> shift;
  };
  if (same(reader, 0)) {
    reader = now;
    return;
  }
  const bool ordered = (same(reader, kBlockShift) && reader.block_epoch < now.block_epoch) ||
                       (same(reader, kWarpShift) && reader.warp_epoch < now.warp_epoch);
  const int shift = same(reader, kWarpShift) ? kWarpShift : kBlockShift;
  if (ordered) {
    // Whoever comes after this read comes after that one too.
    if (same(other, shift)) other = now;
  } else if (!same(reader, kWarpShift) || same(other, kWarpShift)) {
    other = reader;
  }
  reader = now;
}

// An atomic access publishes what a fence has put before it.
void ReleaseByAtomic() {
  if (running->fence_epoch == 0) return;
  if (releases.size() <= launch.block_number) releases.resize(launch.block_number + 1);
  Release& release = releases[launch.block_number];
  release.launch = launch.serial;
  release.linear = running->linear;
  release.epoch = running->block_epoch;
  release.fence_epoch = running->fence_epoch;
  release.fence_epochs.resize(static_cast<size_t>(launch.threads));
  for (int i = 0; i < launch.threads; ++i)
    release.fence_epochs[static_cast<size_t>(i)] = launch.thread[i].fence_epoch;
}

std::string ThreadName(const Clock& clock) {
  return "thread " + std::to_string(clock.thread & (kMaxThreads - 1)) + " of block " +
         std::to_string(clock.thread >> kBlockShift);
}

const void* FullPc(uint32_t pc) { return __executable_start + pc; }

void ReportRace(bool shared, const Clock& then, const char* what_then, const Clock& now,
                bool writes, const void* pc) {
  ReportAt(shared ? FindingKind::kRaceShared : FindingKind::kRaceGlobal, pc,
           ThreadName(then) + what_then + ThreadName(now) + (writes ? " writes" : " reads") +
               ", and nothing orders the two");
}

// False, and a finding.
bool CheckRecord(bool shared, Record* record, uint32_t generation, AccessKind kind,
                 const Clock& now, const void* pc) {
  const bool writes = kind != AccessKind::kRead;
  if (!shared && !running->waited_for_previous) {
    const bool stale = record->by_kernel && record->generation != generation;
    if (writes || stale) {
      ReportAt(FindingKind::kEarlyAccess, pc,
               ThreadName(now) + (writes ? " writes global memory" : " reads what a kernel wrote") +
                   " before GridDependencyWait");
    }
  }
  if (record->generation != generation) {
    const uint32_t by_kernel = record->by_kernel;
    *record = {};
    record->generation = generation;
    record->by_kernel = by_kernel;
  }
  bool fine = true;
  const bool both_atomic = record->atomic && kind == AccessKind::kAtomic;
  if (record->written && !both_atomic && !IsBefore(record->writer, now)) {
    const std::string wrote = " wrote at " + PlaceOf(FullPc(record->writer_pc)) + ", ";
    ReportRace(shared, record->writer, wrote.c_str(), now, writes, pc);
    fine = false;
  } else if (writes && record->read) {
    for (const Clock& reader : {record->reader, record->other_reader}) {
      if (IsBefore(reader, now)) continue;
      ReportRace(shared, reader, " read, ", now, writes, pc);
      fine = false;
      break;
    }
  }
  if (!writes) {
    RememberRead(record, now);
    return fine;
  }
  record->written = 1;
  record->atomic = kind == AccessKind::kAtomic;
  record->read = 0;
  record->by_kernel = 1;
  record->writer = now;
  record->writer_pc = static_cast<uint32_t>(static_cast<const char*>(pc) - __executable_start);
  return fine;
}

}  // namespace

void CheckRaces(bool shared, size_t offset, int bytes, AccessKind kind, const void* pc) {
  const size_t granule = shared ? 1 : kDeviceGranule;
  if (static_cast<size_t>(bytes) < granule) return;
  const uint32_t serial = shared ? static_cast<uint32_t>(launch.block_serial) : launch.serial;
  const uint32_t generation = serial & ((1u << 28) - 1);
  const Clock now = {launch.block_number << kBlockShift | running->linear,
                     static_cast<uint16_t>(running->block_epoch),
                     static_cast<uint16_t>(running->warp_epoch)};
  Record* const records = shared ? shared_records + offset : DeviceRecords() + offset / granule;
  const size_t count = static_cast<size_t>(bytes) / granule;
  for (size_t i = 0; i < count; ++i) {
    if (!CheckRecord(shared, &records[i], generation, kind, now, pc)) break;
  }
}

void ForgetRaces(size_t offset, size_t bytes) {
  Record* const records = DeviceRecords();
  for (size_t i = offset / kDeviceGranule; i < (offset + bytes) / kDeviceGranule; ++i) {
    // Reading untouched address space costs no memory.
    if (records[i].generation != 0) records[i] = {};
  }
}

void StartRaces() { releases.clear(); }

void BeforeAtomic(const void* address, int bytes) {
  if (!launch.checking) return;
  ReleaseByAtomic();
  CheckRunningAccess(address, bytes, AccessKind::kAtomic, __builtin_return_address(0));
}

}  // namespace bitshard::emu
