// One rank of a communicator of the fake NCCL (fake_nccl.cc): what its operations do, once their
// stream has come to them.
//
// Ranks meet in a POSIX shared memory segment that is named by the unique id; they are processes,
// or threads of one. All say what they are doing before they use each other's bytes: the same
// operation with the same count, type and root, or all get ncclInvalidUsage. A rank that has died
// (the kernel drops its lock on a byte of the segment), left or aborted is ncclRemoteError for
// those that wait for it. Sums go round in the order of a ring, rounded at every hop; in a window
// in the order of the ranks, as NCCL's kernels for windows do it. An operation in a window is in
// it, at the same offset, on all ranks.
//
// Faults, from the environment of the rank's process:
//   BITSHARD_FAKE_NCCL_RANK      whom they concern; not set: every rank
//   BITSHARD_FAKE_NCCL_HANG_AT   this operation of a communicator, counted from 0, does not begin
//                                until the communicator is aborted; once a process
//   BITSHARD_FAKE_NCCL_DELAY_US  before every operation
//   BITSHARD_FAKE_NCCL_CALL_US   that each call stays in NCCL, looks too
//   BITSHARD_FAKE_NCCL_BLIND     1: an operation does not see that another rank has died, left or
//                                aborted, as over NVLink
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nccl.h>

#include "tests/support/fake_nccl_windows.h"

namespace bitshard::fake {

inline constexpr int kNcclMaxRanks = 8;

enum class NcclOp : int32_t {
  kAllReduce = 1,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kRecv,
  kRegister  // a window
};

// What ranks compare.
struct NcclCall {
  NcclOp op = NcclOp::kAllReduce;
  int32_t type = 0;       // ncclDataType_t
  int32_t reduction = 0;  // ncclRedOp_t
  int32_t root = 0;       // of a send or receive: the other rank
  uint64_t count = 0;
  int64_t window = -1;  // number of the window that the result lies in; -1: none
  int64_t offset = 0;   // there
  bool operator==(const NcclCall&) const = default;
};

struct NcclWork {
  NcclCall call;
  const void* from = nullptr;
  void* to = nullptr;
  std::shared_ptr<const NcclWindow> window = {};  // of `to`
};

struct NcclSegment;

class NcclRank {
 public:
  NcclRank(std::string name, int rank, int world);
  ~NcclRank();

  // Until all ranks are there; in a thread of its own when `in_background`. The result is state().
  void Join(bool in_background);
  // Until all ranks say the same, then `then`; as Join. Or until the communicator is aborted, when
  // it `hangs`. REQUIRES: state() is success.
  void Agree(const NcclCall& call, bool in_background, bool hangs,
             const std::function<void()>& then);
  // Runs the work, unless the communicator has ended. On whatever thread runs the stream.
  void Run(const std::vector<NcclWork>& works);
  // The communicator ends: whoever is in Run comes out, and so do the other ranks.
  void Abort();
  // This rank is done with it.
  void Leave();

  ncclResult_t state() const { return static_cast<ncclResult_t>(state_.load()); }
  std::string error() const;
  int rank() const { return rank_; }
  int world() const { return world_; }
  int64_t call_us() const { return call_us_; }

  // Whether the fake knows the operation with this type; the reason goes to error().
  bool Knows(const NcclCall& call);
  // The first one counts.
  void Fail(ncclResult_t result, const std::string& why);

 private:
  struct Transfer;

  void JoinNow();
  bool IsAlive(const NcclWork& work);
  bool OpenSegment();
  // Until all ranks have come here as often as this one. False when the communicator has ended.
  bool Meet();
  bool Waiting(int for_rank, int round);
  bool Alive(int rank) const;
  bool InjectFaults();
  void Hang();
  void RunCollective(const NcclWork& work);
  bool SameOnAllRanks(const NcclCall& call);
  void RunTransfers(const std::vector<NcclWork>& works);

  const std::string name_;  // as shm_open wants it
  const int rank_, world_;
  int fd_ = -1;
  NcclSegment* segment_ = nullptr;
  std::thread joining_;

  std::atomic<int> state_{ncclInProgress};
  std::atomic<bool> stop_{false};
  mutable std::mutex error_mu_;
  std::string error_;

  std::mutex running_mu_;  // one operation at a time, and none after Leave
  bool left_ = false;
  uint64_t met_ = 0, begun_ = 0;
  int64_t hang_at_ = -1, delay_us_ = 0, call_us_ = 0;
  bool blind_ = false;
};

}  // namespace bitshard::fake
