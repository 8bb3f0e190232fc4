// Ranks on GPUs of one or several hosts, over NVIDIA's NCCL.
//
// Rank 0 makes the unique id, which travels over the coordinator's authenticated control stream.
// Nothing here blocks for ever: the communicator is a non-blocking one, its start has a deadline,
// and each wait is the watchdog's. Sums of int64 do not show which algorithm NCCL has chosen, those
// of f32 do. NCCL neither encrypts nor authenticates what travels (SECURITY.md).
//
// NCCL knows of a lost device only an "unhandled cuda error", or nothing: after each error the
// device is asked, and its own word that it is lost wins over everything else.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <nccl.h>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"
#include "worker/collective/collective.h"
#include "worker/collective/device_collective.h"
#include "worker/collective/event_wait.h"
#include "worker/collective/nccl_card.h"
#include "worker/collective/nccl_window.h"
#include "worker/collective/nccl_words.h"
#include "worker/collective/watchdog.h"

namespace bitshard {
namespace {

// Of the host's operations: agreement and sampling need a few hundred bytes, a broadcast goes in
// pieces.
constexpr size_t kStageBytes = size_t{1} << 20;
constexpr absl::Duration kPoll = absl::Milliseconds(1);
// For what others still fetch from this rank.
constexpr absl::Duration kClosePatience = absl::Seconds(2);
// A decode step's sums are small: more CTAs would only take the SMs from the kernels beside them.
constexpr int kMaxCtas = 16;

// Of the communicator, once calls in the background are over: success, in progress, or an error.
ncclResult_t StateOf(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclInvalidUsage;
  ncclResult_t state = ncclInternalError;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
  return asked == ncclSuccess ? state : asked;
}

std::string NameOf(const DeviceGroup& group) {
  return absl::StrCat("nccl communicator ", group.id, ", rank ", group.rank, ": ");
}

// `status`, an error, unless the device says that it is lost: then that.
absl::Status OrLost(const absl::Status& status, const Device& device, absl::string_view name) {
  if (IsDeviceLost(status)) return status;
  const absl::Status seen = device.Mem().status();
  return IsDeviceLost(seen) ? WithContext(seen, name) : status;
}

// In order first, because others may still be fetching what this rank has sent.
void Close(ncclComm_t communicator) {
  const absl::Time deadline = MonotonicNow() + kClosePatience;
  ncclResult_t state = ncclCommFinalize(communicator);
  while (state == ncclInProgress && MonotonicNow() < deadline) {
    absl::SleepFor(kPoll);
    state = StateOf(communicator);
  }
  const ncclResult_t closed =
      state == ncclSuccess ? ncclCommDestroy(communicator) : ncclCommAbort(communicator);
  if (state != ncclSuccess || closed != ncclSuccess) {
    LogWarning("nccl: a communicator did not close in order: {}, {}", ncclGetErrorString(state),
               ncclGetErrorString(closed));
  }
}

class NcclCollective final : public DeviceCollective {
 public:
  // Takes the communicator, also when this fails, and the name that NCCL may look at until its end.
  static absl::StatusOr<std::unique_ptr<DeviceCollective>> Create(
      const DeviceGroup& group, std::unique_ptr<const std::string> nccl_name,
      ncclComm_t communicator) {
    std::unique_ptr<NcclCollective> made(
        new NcclCollective(group, std::move(nccl_name), communicator));
    RETURN_IF_ERROR(made->Allocate());
    return std::unique_ptr<DeviceCollective>(std::move(made));
  }

  ~NcclCollective() override {
    watchdog_.reset();  // with it an abort that was begun
    const ncclComm_t communicator = communicator_;
    if (communicator == nullptr) return;
    if (window_.is_open() && !CloseWindow(communicator)) {
      (void)ncclCommAbort(communicator);
      return;
    }
    Close(communicator);
  }

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  absl::Status RecordOwnWork(DeviceEvent& event) override {
    return device_.Record(event, *stream_);
  }

  absl::Status AllReduceSum(absl::Span<int64_t> values) override {
    RETURN_IF_ERROR(Cause(watchdog_->status()));
    for (size_t at = 0; at < values.size(); at += kStageBytes / sizeof(int64_t)) {
      const absl::Span<int64_t> piece = values.subspan(at, kStageBytes / sizeof(int64_t));
      const size_t bytes = piece.size() * sizeof(int64_t);
      std::memcpy(host_.data(), piece.data(), bytes);
      RETURN_IF_ERROR(ToDevice(0, bytes));
      RETURN_IF_ERROR(AllReduceSum(staged_.as<int64_t>(), piece.size(), *stream_));
      RETURN_IF_ERROR(ToHost(bytes));
      std::memcpy(piece.data(), host_.data(), bytes);
    }
    return absl::OkStatus();
  }

  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override {
    CHECK_EQ(all.size(), mine.size() * world_);
    RETURN_IF_ERROR(Cause(watchdog_->status()));
    const size_t most = kStageBytes / world_;
    for (size_t at = 0; at < mine.size(); at += most) {
      const absl::Span<const uint8_t> piece = mine.subspan(at, most);
      const size_t n = piece.size();
      std::memcpy(host_.data() + rank_ * n, piece.data(), n);
      RETURN_IF_ERROR(ToDevice(rank_ * n, n));
      RETURN_IF_ERROR(AllGather(staged_.data() + rank_ * n, staged_.data(), n, *stream_));
      RETURN_IF_ERROR(ToHost(world_ * n));
      for (int r = 0; r < world_; ++r)
        std::memcpy(all.data() + r * mine.size() + at, host_.data() + r * n, n);
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override {
    CHECK(root >= 0 && root < world_);
    RETURN_IF_ERROR(Cause(watchdog_->status()));
    for (size_t at = 0; at < data.size(); at += kStageBytes) {
      const absl::Span<uint8_t> piece = data.subspan(at, kStageBytes);
      if (rank_ == root) {
        std::memcpy(host_.data(), piece.data(), piece.size());
        RETURN_IF_ERROR(ToDevice(0, piece.size()));
      }
      RETURN_IF_ERROR(Call("broadcast", piece.size(), [&] {
        return ncclBroadcast(staged_.data(), staged_.data(), piece.size(), ncclUint8, root,
                             communicator_, Native(*stream_));
      }));
      RETURN_IF_ERROR(ToHost(piece.size()));
      std::memcpy(piece.data(), host_.data(), piece.size());
    }
    return absl::OkStatus();
  }

  absl::Status OpenWindow(const DeviceBuffer& memory, DeviceStream& stream) override {
    window_stream_ = &stream;
    // Registering is an operation of all ranks: all try, or none; all have a window, or none.
    ASSIGN_OR_RETURN(std::string why_not, AskAll(memory, NcclWindow::WhyNot(memory)));
    if (why_not.empty()) {
      ASSIGN_OR_RETURN(why_not, Register(memory));
      ASSIGN_OR_RETURN(why_not, AskAll(memory, why_not));
      if (!why_not.empty() && window_.is_open()) {
        RETURN_IF_ERROR(Call("window_deregister", memory.bytes(),
                             [&] { return window_.Close(communicator_); }));
      }
    }
    if (why_not.empty()) {
      LogInfo("nccl: memory of sums registered rank={} bytes={}", rank_, memory.bytes());
    } else {
      LogInfo("nccl: memory of sums not registered rank={}, they go as from any other: {}", rank_,
              why_not);
    }
    return absl::OkStatus();
  }

  absl::Status AllReduceSum(int64_t* values, size_t count, DeviceStream& stream) override {
    return Sum(values, count, sizeof(int64_t), ncclInt64, stream);
  }
  absl::Status AllReduceSum(float* values, size_t count, DeviceStream& stream) override {
    return Sum(values, count, sizeof(float), ncclFloat32, stream);
  }

  absl::Status AllGather(const void* mine, void* all, size_t bytes, DeviceStream& stream) override {
    if (bytes == 0) return Cause(watchdog_->status());
    return Call("all_gather", bytes, [&] {
      return ncclAllGather(mine, all, bytes, ncclUint8, communicator_, Native(stream));
    });
  }

  using DeviceCollective::Await;
  absl::Status Await(DeviceEvent& event, absl::FunctionRef<void()> meanwhile) override {
    absl::Status status = watchdog_->BeginWait();
    if (status.ok()) {
      status = AwaitEvent(
          device_, event, [this] { return watchdog_->status(); }, meanwhile);
    }
    const absl::Status ended = watchdog_->EndWait();
    RETURN_IF_ERROR(Cause(status.ok() ? ended : status));
    // What NCCL cut off is over, too, and its error may be news to the watchdog.
    RETURN_IF_ERROR(Cause(watchdog_->Enter()));
    return Cause(watchdog_->Leave(Checked("a look at its state", State())));
  }

  void SetProgressWord(const uint64_t* word) override { watchdog_->SetProgressWord(word); }
  void SetConnected() override { watchdog_->SetConnected(); }

  void Abort() override { watchdog_->Abort(); }

 private:
  NcclCollective(const DeviceGroup& group, std::unique_ptr<const std::string> nccl_name,
                 ncclComm_t communicator)
      : rank_(group.rank),
        world_(group.world),
        name_(NameOf(group)),
        nccl_name_(std::move(nccl_name)),
        device_(*group.device),
        communicator_(communicator) {
    Watchdog::Options options;
    options.communicator = absl::StrCat("nccl communicator ", group.id, ", epoch ", group.epoch);
    options.rank = rank_;
    options.operation_timeout = group.operation_timeout == absl::ZeroDuration()
                                    ? kDefaultOperationTimeout
                                    : group.operation_timeout;
    options.connect_timeout = group.connect_timeout;
    options.advice = NcclAdvice();
    options.error = [this] {
      if (!nccl_mu_.TryLock()) return absl::OkStatus();  // the step thread sees it
      const ncclComm_t communicator = communicator_;
      const ncclResult_t state = StateOf(communicator);
      nccl_mu_.Unlock();
      if (state == ncclSuccess || state == ncclInProgress) return absl::OkStatus();
      return absl::InternalError(DescribeNccl("found by the watchdog", state, communicator));
    };
    options.abort = [this] {
      (void)cudaSetDevice(device_.facts().index);  // this thread's, else the first one's context
      const ncclResult_t aborted = ncclCommAbort(communicator_.exchange(nullptr));
      if (aborted != ncclSuccess && aborted != ncclInProgress)
        LogWarning("nccl: the abort failed: {}", ncclGetErrorString(aborted));
    };
    watchdog_ = std::make_unique<Watchdog>(std::move(options));
  }

  static cudaStream_t Native(DeviceStream& stream) {
    return static_cast<cudaStream_t>(stream.native());
  }

  absl::Status Allocate() {
    ASSIGN_OR_RETURN(stream_, device_.NewStream());
    ASSIGN_OR_RETURN(event_, device_.NewEvent());
    ASSIGN_OR_RETURN(host_, device_.AllocHost(kStageBytes));
    ASSIGN_OR_RETURN(staged_, device_.Alloc(kStageBytes));
    return absl::OkStatus();
  }

  // Of the step thread. Once the watchdog has ended the communicator, it may be gone at any time.
  absl::Status Checked(const char* call, ncclResult_t result) const {
    if (result == ncclSuccess) return absl::OkStatus();
    const bool alive = watchdog_->status().ok();
    return absl::InternalError(DescribeNccl(call, result, alive ? communicator_.load() : nullptr));
  }

  absl::Status Call(const char* what, uint64_t bytes, absl::FunctionRef<ncclResult_t()> call) {
    watchdog_->Note(what, bytes);
    RETURN_IF_ERROR(Cause(watchdog_->Enter()));
    const ncclResult_t result = Finish(call);
    return Cause(
        watchdog_->Leave(result == ncclInProgress ? absl::OkStatus() : Checked(what, result)));
  }

  ncclResult_t State() {
    absl::MutexLock lock(&nccl_mu_);
    return StateOf(communicator_);
  }

  // What comes of `call`. Among several ranks each operation goes on in a thread of NCCL's, and the
  // communicator takes no other call, nor may a capture end, before that is over. In progress: the
  // communicator has ended first. REQUIRES: between Enter and Leave.
  ncclResult_t Finish(absl::FunctionRef<ncclResult_t()> call) {
    ncclResult_t result = ncclInternalError;
    {
      absl::MutexLock lock(&nccl_mu_);
      result = call();
      // Registering says success while it goes on.
      if (result == ncclSuccess) result = StateOf(communicator_);
    }
    for (const EventWait wait; result == ncclInProgress && watchdog_->status().ok();
         result = State())
      wait.Pause();
    return result;
  }

  absl::Status Sum(void* values, size_t count, size_t width, ncclDataType_t type,
                   DeviceStream& stream) {
    if (count == 0) return Cause(watchdog_->status());
    return Call("all_reduce", count * width, [&] {
      return ncclAllReduce(values, values, count, type, ncclSum, communicator_, Native(stream));
    });
  }

  // What keeps this rank, or else another one, from a window in such memory; empty: nothing.
  absl::StatusOr<std::string> AskAll(const DeviceBuffer& memory, const std::string& mine) {
    struct Word {
      uint64_t bytes, refuses;
    };
    const Word word = {memory.bytes(), mine.empty() ? 0u : 1u};
    std::vector<Word> all(world_);
    RETURN_IF_ERROR(AllGather(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&word), sizeof(word)),
        absl::MakeSpan(reinterpret_cast<uint8_t*>(all.data()), all.size() * sizeof(Word))));
    for (int r = 0; r < world_; ++r) {
      if (all[r].bytes == word.bytes) continue;
      return absl::InternalError(absl::StrCat(name_, "its sums need ", word.bytes,
                                              " bytes, those of rank ", r, " ", all[r].bytes,
                                              ": the ranks do not run the same graph"));
    }
    for (int r = 0; mine.empty() && r < world_; ++r) {
      if (all[r].refuses != 0) return absl::StrCat("rank ", r, " has none; its log says why");
    }
    return mine;
  }

  // Why there is no window now, though the communicator lives; empty: there is one.
  absl::StatusOr<std::string> Register(const DeviceBuffer& memory) {
    constexpr char kCall[] = "window_register";
    watchdog_->Note(kCall, memory.bytes());
    RETURN_IF_ERROR(Cause(watchdog_->Enter()));
    ncclResult_t result = Finish([&] { return window_.Open(communicator_, memory); });
    std::string why_not;
    const absl::Status ended = watchdog_->status();
    if (result == ncclInProgress) {
      if (!IsCollectiveAbort(ended)) NcclWindow::GiveUp("registering did not end");
    } else if (result != ncclSuccess) {
      why_not = DescribeNccl(kCall, result, ended.ok() ? communicator_.load() : nullptr);
      NcclWindow::GiveUp(why_not);
      if (State() == ncclSuccess) result = ncclSuccess;  // no more than a refusal
    } else if (!window_.is_open()) {
      why_not =
          "NCCL registers nothing: NCCL_WIN_ENABLE=0 or no access between all GPUs, and "
          "NCCL_LOCAL_REGISTER=0";
    }
    RETURN_IF_ERROR(Cause(
        watchdog_->Leave(result == ncclInProgress ? absl::OkStatus() : Checked(kCall, result))));
    return why_not;
  }

  // False when the stream's work is not over, a moment later: then only an abort is left.
  bool CloseWindow(ncclComm_t communicator) {
    if (!device_.Record(*event_, *window_stream_).ok()) return false;
    const absl::StatusOr<bool> over = PassedWithin(device_, *event_, kClosePatience);
    if (!over.ok() || !*over) return false;
    const ncclResult_t closed = window_.Close(communicator);
    if (closed != ncclSuccess)
      LogWarning("nccl: {}", DescribeNccl("ncclCommWindowDeregister", closed, communicator));
    return closed == ncclSuccess;
  }

  // From host_ to staged_, the same place.
  absl::Status ToDevice(size_t at, size_t bytes) {
    return Cause(device_.Copy(staged_.data() + at, host_.data() + at, bytes, *stream_));
  }
  // From the start of staged_ to that of host_, and until it is there.
  absl::Status ToHost(size_t bytes) {
    RETURN_IF_ERROR(Cause(device_.Copy(host_.data(), staged_.data(), bytes, *stream_)));
    RETURN_IF_ERROR(Cause(device_.Record(*event_, *stream_)));
    return Await(*event_);
  }
  // What an error comes from: a lost device first, then what has ended the communicator, as the
  // device may complain about what an abort has left.
  absl::Status Cause(const absl::Status& status) const {
    if (status.ok()) return status;
    const absl::Status ended = watchdog_->status();
    return OrLost(ended.ok() || IsDeviceLost(status) ? status : ended, device_, name_);
  }

  const int rank_, world_;
  const std::string name_;
  const std::unique_ptr<const std::string> nccl_name_;
  Device& device_;
  // Null once it was aborted, on the watchdog's thread: the step thread may still be in a call
  // then.
  std::atomic<ncclComm_t> communicator_;
  // Around calls and looks: of two threads that find a call in the background over, both would free
  // what it leaves. Not around an abort, which ends a call that hangs, nor once the watchdog is
  // gone.
  absl::Mutex nccl_mu_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  DeviceBuffer host_, staged_;  // of kStageBytes
  NcclWindow window_;
  DeviceStream* window_stream_ = nullptr;
  std::unique_ptr<Watchdog> watchdog_;
};

absl::Status Named(const DeviceGroup& group, absl::StatusCode code, const std::string& what) {
  return absl::Status(code, absl::StrCat(NameOf(group), what));
}

// Of all ranks, by rank, checked.
absl::StatusOr<std::vector<NcclCard>> ExchangeCards(const DeviceGroup& group) {
  NcclCard mine;
  mine.device_id = NameOfGpu(*group.device);
  if (ncclGetVersion(&mine.version) != ncclSuccess)
    return Named(group, absl::StatusCode::kUnavailable, "the library does not tell its version");
  if (group.rank == 0) {
    const ncclResult_t made = ncclGetUniqueId(&mine.id);
    if (made != ncclSuccess) {
      return Named(
          group, absl::StatusCode::kUnavailable,
          absl::StrCat(DescribeNccl("ncclGetUniqueId", made, nullptr), "; ", NcclAdvice()));
    }
  }
  const absl::StatusOr<std::vector<std::string>> told = group.tell(mine.Pack());
  if (!told.ok()) return WithContext(told.status(), NameOf(group));
  std::vector<NcclCard> cards(group.world);
  for (int r = 0; r < group.world; ++r) {
    if (told->size() != cards.size() || !cards[r].Unpack((*told)[r])) {
      return Named(group, absl::StatusCode::kInternal,
                   "what the ranks told each other is not of one group");
    }
    if (cards[r].version != mine.version) {
      return Named(group, absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("its NCCL is ", mine.version, ", that of rank ", r, " is ",
                                cards[r].version, "; install the same libnccl.so.2 everywhere"));
    }
    for (int other = 0; other < r; ++other) {
      if (cards[r].device_id.empty() || cards[r].device_id != cards[other].device_id) continue;
      return Named(
          group, absl::StatusCode::kFailedPrecondition,
          absl::StrCat("ranks ", other, " and ", r, " are both on device ", cards[r].device_id,
                       ", and NCCL takes no two ranks on one GPU; give each worker its own "
                       "(--device=cuda:INDEX, or CUDA_VISIBLE_DEVICES)"));
    }
  }
  return cards;
}

absl::StatusOr<std::unique_ptr<DeviceCollective>> Join(const DeviceGroup& group,
                                                       absl::Duration timeout,
                                                       const std::atomic<bool>* stop) {
  const absl::Time deadline = MonotonicNow() + timeout;
  ASSIGN_OR_RETURN(const std::vector<NcclCard> cards, ExchangeCards(group));
  // Makes the device this thread's, in which NCCL finds it.
  RETURN_IF_ERROR(WithContext(group.device->Mem().status(), NameOf(group)));

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  auto nccl_name = std::make_unique<const std::string>(group.id);
  config.commName = nccl_name->c_str();
  config.maxCTAs = kMaxCtas;
  ncclComm_t communicator = nullptr;
  ncclResult_t state =
      ncclCommInitRankConfig(&communicator, group.world, cards[0].id, group.rank, &config);
  absl::Status called_off;
  while ((state == ncclInProgress || state == ncclSuccess) && communicator != nullptr) {
    state = StateOf(communicator);
    if (state != ncclInProgress) break;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      called_off = Named(group, absl::StatusCode::kCancelled, "called off");
    } else if (MonotonicNow() >= deadline) {
      called_off = Named(group, absl::StatusCode::kUnavailable,
                         absl::StrCat("not all ", group.world, " ranks met within ",
                                      absl::FormatDuration(timeout), "; ", NcclAdvice()));
    }
    if (!called_off.ok()) break;
    absl::SleepFor(kPoll);
  }
  if (state == ncclSuccess && communicator != nullptr) {
    LogInfo("nccl: joined communicator={} epoch={} rank={} world={} nccl={}", group.id, group.epoch,
            group.rank, group.world, cards[0].version);
    return NcclCollective::Create(group, std::move(nccl_name), communicator);
  }
  const std::string why = DescribeNccl("ncclCommInitRankConfig", state, communicator);
  if (communicator != nullptr) (void)ncclCommAbort(communicator);
  const bool usage = state == ncclInvalidUsage || state == ncclInvalidArgument;
  const absl::Status failed =
      Named(group, usage ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable,
            absl::StrCat(why, "; ", NcclAdvice()));
  return OrLost(called_off.ok() ? failed : called_off, *group.device, NameOf(group));
}

const RegisterDeviceCollective kRegistered({.name = "nccl",
                                            .device_kind = "cuda",
                                            .join = &Join,
                                            .identify = &NameOfGpu,
                                            .peer_warning = &NcclPeerWarning,
                                            .alloc = &AllocNcclMemory});

}  // namespace
}  // namespace bitshard
