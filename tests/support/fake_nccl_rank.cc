#include "tests/support/fake_nccl_rank.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/float_types.h"
#include "kernels/cuda/emu/memory.h"

namespace bitshard::fake {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;
constexpr size_t kMailBytes = size_t{16} << 10;

struct Mail {
  std::atomic<uint32_t> full;
  NcclCall call;
  char data[kMailBytes];
};

size_t Width(int type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

std::string Text(const NcclCall& call) {
  static constexpr const char* kNames[] = {"?",          "all_reduce", "reduce_scatter",
                                           "all_gather", "broadcast",  "send",
                                           "receive",    "register"};
  return absl::StrCat(kNames[static_cast<int>(call.op)], " count=", call.count, " type=", call.type,
                      " reduction=", call.reduction, " root=", call.root, " window=", call.window,
                      " offset=", call.offset);
}

// How two values of a type become one.
template <typename T>
struct Sum {
  static T Of(T a, T b) { return a + b; }
};
template <>
struct Sum<int64_t> {  // wraps
  static int64_t Of(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Bf16 {
  uint16_t bits;
};
template <>
struct Sum<Bf16> {
  static Bf16 Of(Bf16 a, Bf16 b) { return {F32ToBf16(Bf16ToF32(a.bits) + Bf16ToF32(b.bits))}; }
};
struct F16 {
  uint16_t bits;
};
template <>
struct Sum<F16> {
  static F16 Of(F16 a, F16 b) { return {F32ToF16(F16ToF32(a.bits) + F16ToF32(b.bits))}; }
};

}  // namespace

struct NcclSegment {
  std::atomic<int> world, joined, aborted;
  std::atomic<int> pid[kNcclMaxRanks];
  std::atomic<uint64_t> met[kNcclMaxRanks];
  NcclCall call[kNcclMaxRanks];
  char stage[kNcclMaxRanks][kChunkBytes];
  Mail mail[kNcclMaxRanks][kNcclMaxRanks];  // [from][to]
};

namespace {

// `n` elements that begin at byte `at` of every rank's stage, in the order first, first + 1, ...
template <typename T>
void SumStages(const NcclSegment& segment, int world, int first, size_t at, size_t n, void* to) {
  for (size_t i = 0; i < n; ++i) {
    T sum;
    std::memcpy(&sum, segment.stage[first] + at + i * sizeof(T), sizeof(T));
    for (int k = 1; k < world; ++k) {
      T next;
      std::memcpy(&next, segment.stage[(first + k) % world] + at + i * sizeof(T), sizeof(T));
      sum = Sum<T>::Of(sum, next);
    }
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &sum, sizeof(T));
  }
}

void SumStages(int type, const NcclSegment& segment, int world, int first, size_t at, size_t n,
               void* to) {
  switch (type) {
    case ncclInt64:
      return SumStages<int64_t>(segment, world, first, at, n, to);
    case ncclFloat32:
      return SumStages<float>(segment, world, first, at, n, to);
    case ncclBfloat16:
      return SumStages<Bf16>(segment, world, first, at, n, to);
    default:
      return SumStages<F16>(segment, world, first, at, n, to);
  }
}

struct flock ByteLock(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace

NcclRank::NcclRank(std::string name, int rank, int world)
    : name_(std::move(name)), rank_(rank), world_(world) {
  if (FromEnvironment("BITSHARD_FAKE_NCCL_RANK", rank) != rank) return;
  hang_at_ = FromEnvironment("BITSHARD_FAKE_NCCL_HANG_AT", -1);
  delay_us_ = FromEnvironment("BITSHARD_FAKE_NCCL_DELAY_US", 0);
  call_us_ = FromEnvironment("BITSHARD_FAKE_NCCL_CALL_US", 0);
  blind_ = FromEnvironment("BITSHARD_FAKE_NCCL_BLIND", 0) != 0;
}

NcclRank::~NcclRank() {
  Leave();
  if (segment_ != nullptr) munmap(segment_, sizeof(NcclSegment));
}

std::string NcclRank::error() const {
  std::lock_guard<std::mutex> lock(error_mu_);
  return error_;
}

void NcclRank::Fail(ncclResult_t result, const std::string& why) {
  std::lock_guard<std::mutex> lock(error_mu_);
  const int state = state_.load();
  if (state != ncclSuccess && state != ncclInProgress) return;
  error_ = why;
  state_.store(result);
}

void NcclRank::Join(bool in_background) {
  if (in_background) {
    joining_ = std::thread([this] { JoinNow(); });
  } else {
    JoinNow();
  }
}

bool NcclRank::OpenSegment() {
  fd_ = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0 || ftruncate(fd_, sizeof(NcclSegment)) != 0) {
    Fail(ncclSystemError, absl::StrCat("shm_open ", name_, ": ", strerror(errno)));
    return false;
  }
  void* at = mmap(nullptr, sizeof(NcclSegment), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) {
    Fail(ncclSystemError, absl::StrCat("mmap ", name_, ": ", strerror(errno)));
    return false;
  }
  segment_ = static_cast<NcclSegment*>(at);  // zeros, the first time
  struct flock lock = ByteLock(rank_);
  if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
    Fail(ncclInvalidUsage, absl::StrCat("rank ", rank_, " is there twice"));
    return false;
  }
  int world = 0;
  if (!segment_->world.compare_exchange_strong(world, world_) && world != world_) {
    Fail(ncclInvalidUsage, absl::StrCat("a communicator of ", world_, " ranks, or of ", world));
    return false;
  }
  return true;
}

void NcclRank::JoinNow() {
  if (!OpenSegment()) return;
  segment_->pid[rank_].store(getpid());
  ++segment_->joined;
  while (segment_->joined.load() < world_) {
    if (stop_.load() || segment_->aborted.load() != 0) {
      Fail(ncclRemoteError, "a rank has aborted before all were there");
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  shm_unlink(name_.c_str());
  int in_progress = ncclInProgress;
  state_.compare_exchange_strong(in_progress, ncclSuccess);
}

bool NcclRank::Alive(int rank) const {
  struct flock lock = ByteLock(rank);
  return rank == rank_ || fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// One look more for another rank has not sufficed. False when there will be no further ones.
bool NcclRank::Waiting(int for_rank, int round) {
  if (stop_.load()) {
    Fail(ncclInternalError, "aborted here");
    return false;
  }
  if (round % 64 == 63 && !blind_) {
    const bool aborted = segment_->aborted.load() != 0;
    if (aborted || !Alive(for_rank)) {
      Fail(ncclRemoteError,
           absl::StrCat(
               "rank ", for_rank, " (pid ", segment_->pid[for_rank].load(), ") ",
               aborted ? "or another one has aborted" : "has died or left the communicator"));
      return false;
    }
  }
  if (round < 256) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

bool NcclRank::Meet() {
  segment_->met[rank_].store(++met_, std::memory_order_release);
  for (int r = 0; r < world_; ++r) {
    for (int round = 0; segment_->met[r].load(std::memory_order_acquire) < met_; ++round) {
      if (!Waiting(r, round)) return false;
    }
  }
  return true;
}

void NcclRank::Hang() {
  while (!stop_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Fail(ncclInternalError, "aborted here, while it hung");
}

bool NcclRank::InjectFaults() {
  static std::atomic<bool> has_hung{false};
  if (delay_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us_));
  if (static_cast<int64_t>(begun_) == hang_at_ && !has_hung.exchange(true)) {
    Hang();
    return false;
  }
  ++begun_;
  return true;
}

bool NcclRank::Knows(const NcclCall& call) {
  const bool sums = call.op == NcclOp::kAllReduce || call.op == NcclOp::kReduceScatter;
  const bool summed = call.type == ncclInt64 || call.type == ncclFloat32 ||
                      call.type == ncclBfloat16 || call.type == ncclFloat16;
  return Width(call.type) != 0 && call.root >= 0 && call.root < world_ &&
         (!sums || (summed && call.reduction == ncclSum));
}

void NcclRank::Agree(const NcclCall& call, bool in_background, bool hangs,
                     const std::function<void()>& then) {
  if (joining_.joinable()) joining_.join();
  state_.store(ncclInProgress);
  const auto agree = [this, call, hangs, then] {
    std::lock_guard<std::mutex> lock(running_mu_);
    if (left_) return;
    if (hangs) return Hang();
    segment_->call[rank_] = call;
    if (!Meet() || !SameOnAllRanks(call) || !Meet()) return;
    then();
    int in_progress = ncclInProgress;
    state_.compare_exchange_strong(in_progress, ncclSuccess);
  };
  if (in_background) {
    joining_ = std::thread(agree);
  } else {
    agree();
  }
}

bool NcclRank::IsAlive(const NcclWork& work) {
  std::string dead;
  if (work.window != nullptr && !work.window->registered.load()) dead = "a window that is no more";
  const size_t bytes = work.call.count * Width(work.call.type);
  for (const void* at : {work.from, static_cast<const void*>(work.to)}) {
    if (bytes > 0 && emu::IsDeviceAddress(at) && !emu::IsAllocated(at, bytes))
      dead = "memory that is not there";
  }
  if (dead.empty()) return true;
  const std::string why = absl::StrCat("rank ", rank_, " works in ", dead, ": ", Text(work.call));
  CountNcclMisuse(why);
  Fail(ncclInvalidUsage, why);
  return false;
}

void NcclRank::Run(const std::vector<NcclWork>& works) {
  std::lock_guard<std::mutex> lock(running_mu_);
  std::vector<NcclWork> transfers;
  for (const NcclWork& work : works) {
    if (left_ || stop_.load() || state() != ncclSuccess || !InjectFaults() || !IsAlive(work))
      return;
    if (work.call.op == NcclOp::kSend || work.call.op == NcclOp::kRecv) {
      transfers.push_back(work);
    } else {
      RunCollective(work);
    }
  }
  if (state() == ncclSuccess) RunTransfers(transfers);
}

bool NcclRank::SameOnAllRanks(const NcclCall& call) {
  for (int r = 0; r < world_; ++r) {
    if (segment_->call[r] == call) continue;
    const std::string why = absl::StrCat("ranks disagree: rank ", rank_, " is in ", Text(call),
                                         ", rank ", r, " in ", Text(segment_->call[r]));
    Meet();  // all have read it
    Fail(ncclInvalidUsage, why);
    return false;
  }
  return true;
}

void NcclRank::RunCollective(const NcclWork& work) {
  const NcclCall& call = work.call;
  const size_t width = Width(call.type);
  const bool scatters = call.op == NcclOp::kReduceScatter;
  const size_t most = kChunkBytes / width / (scatters ? world_ : 1);  // elements of a round
  const char* from = static_cast<const char*>(work.from);
  char* to = static_cast<char*>(work.to);
  size_t at = 0;
  do {  // once also without elements: the ranks compare what they are doing
    const size_t n = std::min<size_t>(most, call.count - at);
    if (scatters) {
      for (int r = 0; r < world_; ++r) {
        std::memcpy(segment_->stage[rank_] + r * n * width, from + (r * call.count + at) * width,
                    n * width);
      }
    } else if (n > 0 && (call.op != NcclOp::kBroadcast || call.root == rank_)) {
      std::memcpy(segment_->stage[rank_], from + at * width, n * width);
    }
    if (at == 0) segment_->call[rank_] = call;
    if (!Meet() || (at == 0 && !SameOnAllRanks(call))) return;
    switch (call.op) {
      case NcclOp::kAllReduce: {
        // Each rank's slice begins its way round at the next rank.
        const size_t slice = (n + world_ - 1) / world_;
        for (int r = 0; r < world_; ++r) {
          const size_t begin = std::min(n, r * slice), end = std::min(n, begin + slice);
          const int first = work.call.window < 0 ? (r + 1) % world_ : 0;
          SumStages(call.type, *segment_, world_, first, begin * width, end - begin,
                    to + (at + begin) * width);
        }
        break;
      }
      case NcclOp::kReduceScatter:
        SumStages(call.type, *segment_, world_, (rank_ + 1) % world_, rank_ * n * width, n,
                  to + at * width);
        break;
      case NcclOp::kAllGather:
        for (int r = 0; r < world_; ++r) {
          if (n > 0) std::memcpy(to + (r * call.count + at) * width, segment_->stage[r], n * width);
        }
        break;
      default:
        if (n > 0) std::memcpy(to + at * width, segment_->stage[call.root], n * width);
        break;
    }
    if (!Meet()) return;
    at += n;
  } while (at < call.count);
}

struct NcclRank::Transfer {
  NcclWork work;
  Mail* mail = nullptr;
  size_t total = 0, at = 0;  // bytes
};

// All at once: a rank may send and receive in a ring.
void NcclRank::RunTransfers(const std::vector<NcclWork>& works) {
  std::vector<Transfer> open;
  for (const NcclWork& work : works) {
    const int other = work.call.root;
    Mail* mail = work.call.op == NcclOp::kSend ? &segment_->mail[rank_][other]
                                               : &segment_->mail[other][rank_];
    open.push_back({work, mail, work.call.count * Width(work.call.type), 0});
  }
  for (int round = 0; !open.empty(); ++round) {
    bool moved = false;
    for (Transfer& t : open) {
      const size_t n = std::min(kMailBytes, t.total - t.at);
      const bool sends = t.work.call.op == NcclOp::kSend;
      if (t.mail->full.load(std::memory_order_acquire) != (sends ? 0u : 1u)) continue;
      if (sends) {
        t.mail->call = t.work.call;
        std::memcpy(t.mail->data, static_cast<const char*>(t.work.from) + t.at, n);
      } else {
        if (t.mail->call.count != t.work.call.count || t.mail->call.type != t.work.call.type) {
          Fail(ncclInvalidUsage,
               absl::StrCat("ranks disagree: rank ", rank_, " is in ", Text(t.work.call), ", rank ",
                            t.work.call.root, " in ", Text(t.mail->call)));
          return;
        }
        std::memcpy(static_cast<char*>(t.work.to) + t.at, t.mail->data, n);
      }
      t.mail->full.store(sends ? 1 : 0, std::memory_order_release);
      t.at += n;
      moved = true;
    }
    open.erase(
        std::remove_if(open.begin(), open.end(), [](const Transfer& t) { return t.at == t.total; }),
        open.end());
    if (moved) round = 0;
    if (!moved && !open.empty() && !Waiting(open[0].work.call.root, round)) return;
  }
}

void NcclRank::Abort() {
  stop_.store(true);
  if (joining_.joinable()) joining_.join();
  if (segment_ != nullptr) segment_->aborted.store(1);
  shm_unlink(name_.c_str());  // when not all have come
  Fail(ncclInternalError, "aborted here");
  Leave();
}

void NcclRank::Leave() {
  if (joining_.joinable()) {
    stop_.store(true);
    joining_.join();
  }
  std::lock_guard<std::mutex> lock(running_mu_);
  left_ = true;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace bitshard::fake
