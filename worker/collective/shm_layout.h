// The bytes that the ranks of one host share: a header, one line a rank, two staging buffers a
// rank.
//
//   header | line of rank 0 .. world-1 | staging of rank 0: buffer 0, buffer 1 | rank 1 ...
//
// Every word that two ranks touch is an atomic; staging bytes are ordinary memory, ordered by the
// phase words (written before the owner's phase is stored, read after it was seen). Fresh segments
// are all zero. Sizes are fixed by `world` alone, nothing that a peer writes is ever used as an
// index or a length.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace bitshard {

inline constexpr int kShmMaxWorld = 64;
inline constexpr uint32_t kShmMagic = 0x42534d31;  // "BSM1"; changes with the layout
// Half a MiB stays in the second-level cache of most CPUs; longer messages go in pieces of this
// size.
inline constexpr size_t kShmStagingBytes = size_t{512} << 10;
inline constexpr size_t kShmLine = 128;  // two cache lines: the neighbour prefetcher pulls pairs

// Why the group ended, first cause wins: kind << 16 | rank. 0 = it lives.
enum class ShmEnd : uint32_t { kNone = 0, kAborted = 1, kDied = 2, kLeft = 3, kJoinFailed = 4 };

struct alignas(kShmLine) ShmHeader {
  uint32_t magic;
  uint32_t world;
  std::atomic<uint32_t> ready;   // futex word: 1 once every rank has joined
  std::atomic<uint32_t> joined;  // futex word: counts up as ranks join
  std::atomic<uint32_t> end;     // ShmEnd and rank
};

struct alignas(kShmLine) ShmRankLine {
  // The rank's progress: +1 a phase, wraps. Futex word of those who wait for this rank.
  std::atomic<uint32_t> phase;
  std::atomic<uint32_t> sleepers;  // how many may be in futex_wait on `phase`
  std::atomic<uint32_t> cpu;       // where the rank ran when it posted its last phase, a hint
  // What the rank does in its last two phases, by the phase's parity: operations are compared,
  // never trusted.
  struct Posted {
    std::atomic<uint64_t> sequence;
    std::atomic<uint64_t> op;  // PackOperation
  } posted[2];
  // Written once, at join.
  alignas(kShmLine) std::atomic<uint32_t> joined;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> cpus[16];  // the CPUs it may run on, bit per CPU, the first 1024
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex word has 4 bytes");

// A view of mapped memory; does not own it.
class ShmView {
 public:
  ShmView() = default;
  ShmView(uint8_t* base, int world) : base_(base), world_(world) {}

  static constexpr size_t Bytes(int world) {
    return sizeof(ShmHeader) + world * (sizeof(ShmRankLine) + 2 * kShmStagingBytes);
  }

  int world() const { return world_; }
  ShmHeader& header() const { return *reinterpret_cast<ShmHeader*>(base_); }
  ShmRankLine& line(int rank) const {
    return reinterpret_cast<ShmRankLine*>(base_ + sizeof(ShmHeader))[rank];
  }
  uint8_t* staging(int rank, uint32_t parity) const {
    return base_ + sizeof(ShmHeader) + world_ * sizeof(ShmRankLine) +
           (size_t{2} * rank + parity) * kShmStagingBytes;
  }

 private:
  uint8_t* base_ = nullptr;
  int world_ = 0;
};

}  // namespace bitshard
