// One worker process as the coordinator sees it: what it said when it registered, and how far it
// is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "proto/worker.pb.h"

namespace bitshard {

// One control stream. Never reused; a later one is greater.
using ConnectionId = uint64_t;

struct Member {
  enum class Phase {
    kConnected,   // has not said Register yet
    kRegistered,  // without a rank: a spare, or waiting for the others
    kLoading,
    kLoaded,
    kJoining,
    kJoined,
    kAllocating,
    kReady,
    kQuiescing,  // EndEpoch sent, Quiesced awaited
  };

  ConnectionId connection = 0;
  Phase phase = Phase::kConnected;
  absl::Time phase_since;
  absl::Time last_heard;
  internal::Register registration;
  std::optional<uint32_t> rank;

  internal::Progress progress;  // while loading
  absl::Time progress_at;       // when it last moved
  internal::Loaded loaded;
  std::string rendezvous;      // while joining: what it told the others; empty = nothing yet
  internal::BringUp bring_up;  // since it was ready first
  internal::MemoryReport memory;
  absl::Time memory_at = absl::InfinitePast();  // when it came

  uint64_t step = 0;  // last begun, from heartbeats
  uint64_t op = 0;
  bool busy = false;
  uint64_t acked_step = 0;  // last known to be finished in this epoch
  absl::Time moved_at;      // when step, op or acked_step last changed

  bool has_rank() const { return rank.has_value(); }
};

const char* Name(Member::Phase phase);

// What operators see.
struct RankSnapshot {
  uint32_t rank = 0;
  bool present = false;  // the rest is meaningless without
  Member::Phase phase = Member::Phase::kConnected;
  std::string host;
  int64_t pid = 0;
  std::string device;
  std::string isa;
  uint64_t read_bytes_per_s = 0;  // of its memory; 0 = not known
  uint64_t step = 0, op = 0, acked_step = 0;
  bool busy = false;
  absl::Duration heartbeat_age;
  uint64_t done_bytes = 0, total_bytes = 0;  // while loading
  uint64_t weight_bytes = 0, read_bytes = 0, padding_bytes = 0, vector_bytes = 0;
  bool deterministic = true;  // what it runs, once it has loaded
  internal::MemoryReport memory = {};
  absl::Duration memory_age = absl::InfiniteDuration();  // infinite: there is none yet
  internal::BringUp bring_up = {};
  std::vector<internal::KernelChoice> kernels = {};
  std::vector<internal::ProbeFigure> probe = {};
};

// A registered worker without a rank.
struct SpareSnapshot {
  std::string host;
  int64_t pid = 0;
};

struct GroupSnapshot {
  enum class State { kForming, kReady, kLost };
  State state = State::kForming;
  std::string detail;  // what it waits for, or why it was lost; for people
  uint64_t term = 0, epoch = 0;
  uint32_t world = 0;
  uint32_t cache_blocks = 0;
  std::vector<RankSnapshot> ranks;  // world of them
  std::vector<SpareSnapshot> spares;
};

}  // namespace bitshard
