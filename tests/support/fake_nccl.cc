// NCCL for tests on machines without a GPU: functions of the real nccl.h, so that signatures cannot
// drift, under the real worker/collective/nccl.cc. Only what the project calls, and what its tests
// compare it with, is there; another function is missing at link time.
//
// Operations are put on the fake runtime's streams (fake_cudart.h) and run on the streams' threads:
// calls return at once, graphs repeat them. Of one communicator they run in the order in which the
// streams come to them, not in that of the calls: whoever uses two streams waits in between. What
// an operation does, and how faults are injected: fake_nccl_rank.h; windows: fake_nccl_windows.h.
// Calls on a non-blocking communicator of several ranks go on in the background, until somebody has
// looked kLooks times. A call before that spoils the communicator, as in NCCL.
// Not modelled: transports, groups that start communicators, the numerics of trees.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nccl.h>

#include "tests/support/fake_cudart.h"
#include "tests/support/fake_nccl_rank.h"
#include "tests/support/fake_nccl_windows.h"

using bitshard::fake::CountNcclMisuse;
using bitshard::fake::EnqueueHostWork;
using bitshard::fake::kNcclMaxRanks;
using bitshard::fake::NcclCall;
using bitshard::fake::NcclOp;
using bitshard::fake::NcclRank;
using bitshard::fake::NcclWindows;
using bitshard::fake::NcclWork;

struct ncclComm {
  std::shared_ptr<NcclRank> rank;
  std::shared_ptr<int> graphs;  // held by operations in graphs, too
  int device = 0;
  bool blocking = true;
  NcclWindows windows;
  std::atomic<int> looks{0};  // that will still see the last call in progress
  std::atomic<bool> inside{false};
};

namespace {

constexpr char kNamePrefix[] = "/bitshard-fake-nccl-";
constexpr int kLooks = 3;

struct Grouped {
  ncclComm_t communicator;
  NcclWork work;
  cudaStream_t stream;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> group;
thread_local std::string last_error;

ncclResult_t Refuse(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

// In a call on a communicator, but for those that end it.
class Inside {
 public:
  explicit Inside(ncclComm_t communicator) : communicator_(communicator) {
    if (communicator->inside.exchange(true))
      CountNcclMisuse("two threads are in calls on one communicator");
    std::this_thread::sleep_for(std::chrono::microseconds(communicator->rank->call_us()));
  }
  ~Inside() { communicator_->inside.store(false); }

 private:
  const ncclComm_t communicator_;
};

// Whether the communicator takes a call.
ncclResult_t Ready(ncclComm_t communicator) {
  NcclRank& rank = *communicator->rank;
  const ncclResult_t state = rank.state();
  if (state != ncclInProgress && (state != ncclSuccess || communicator->looks == 0)) return state;
  rank.Fail(ncclInvalidArgument, "a call before the last one was over");
  return Refuse(ncclInvalidArgument, "a call before the last one was over");
}

// The communicator takes no call for a while. False: it does.
bool GoOnInBackground(ncclComm_t communicator) {
  if (communicator->blocking || communicator->rank->world() == 1) return false;
  communicator->looks = kLooks;
  return true;
}

ncclResult_t Enqueue(ncclComm_t communicator, std::vector<NcclWork> works, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess)
    return Refuse(ncclUnhandledCudaError, "not a stream");
  std::shared_ptr<int> graph;
  if (capture == cudaStreamCaptureStatusActive) graph = communicator->graphs;
  const cudaError_t error = EnqueueHostWork(
      stream, [rank = communicator->rank, graph, works = std::move(works)] { rank->Run(works); });
  if (error != cudaSuccess) return Refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
  return GoOnInBackground(communicator) ? ncclInProgress : ncclSuccess;
}

ncclResult_t Post(ncclComm_t communicator, NcclWork work, cudaStream_t stream) {
  if (communicator == nullptr) return Refuse(ncclInvalidArgument, "no communicator");
  const Inside inside(communicator);
  const ncclResult_t ready = Ready(communicator);
  if (ready != ncclSuccess) return ready;
  if (!communicator->rank->Knows(work.call))
    return Refuse(ncclInvalidArgument, "a type, reduction or rank that the fake does not know");
  work.window = communicator->windows.Find(work.to);
  if (work.window != nullptr && work.window->symmetric && work.call.op != NcclOp::kRecv) {
    work.call.window = work.window->number;
    work.call.offset = static_cast<const char*>(work.to) - work.window->begin;
  }
  if (group_depth > 0) {
    group.push_back({communicator, work, stream});
    return ncclSuccess;
  }
  return Enqueue(communicator, {work}, stream);
}

NcclCall Call(NcclOp op, size_t count, ncclDataType_t type, int root = 0,
              ncclRedOp_t reduction = ncclSum) {
  NcclCall call;
  call.op = op;
  call.type = type;
  call.reduction = reduction;
  call.root = root;
  call.count = count;
  return call;
}

// The real one would wait until they have been destroyed.
bool HasGraphs(ncclComm_t communicator) {
  const long held = communicator->graphs.use_count() - 1;
  if (held > 0)
    std::fprintf(stderr, "fake nccl: %ld operations of the communicator are in graphs\n", held);
  return held > 0;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = bitshard::fake::NcclVersion();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  std::random_device random;
  std::snprintf(id->internal, sizeof(id->internal), "%s%d-%08x%08x", kNamePrefix, getpid(),
                random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *out = nullptr;
  if (world < 1 || world > kNcclMaxRanks || rank < 0 || rank >= world)
    return Refuse(ncclInvalidArgument, "a rank or world that cannot be");
  if (std::strncmp(id.internal, kNamePrefix, sizeof(kNamePrefix) - 1) != 0 ||
      std::memchr(id.internal, '\0', sizeof(id.internal)) == nullptr)
    return Refuse(ncclInvalidArgument, "an id that ncclGetUniqueId has not made");
  const ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr && (config->size != plain.size || config->magic != plain.magic))
    return Refuse(ncclInvalidArgument, "a config that was not initialized");
  auto made = std::make_unique<ncclComm>();
  if (cudaGetDevice(&made->device) != cudaSuccess)
    return Refuse(ncclUnhandledCudaError, "no current device");
  made->rank = std::make_shared<NcclRank>(id.internal, rank, world);
  made->graphs = std::make_shared<int>(0);
  const bool in_background = config != nullptr && config->blocking == 0;
  made->blocking = !in_background;
  made->rank->Join(in_background);
  *out = made.release();
  return in_background ? ncclInProgress : (*out)->rank->state();
}

ncclResult_t ncclCommInitRank(ncclComm_t* out, int world, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(out, world, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const Inside inside(communicator);
  *state = communicator->rank->state();
  if (*state == ncclSuccess && communicator->looks > 0) {
    --communicator->looks;
    *state = ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  const Inside inside(communicator);
  return HasGraphs(communicator) ? ncclInProgress : Ready(communicator);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  communicator->rank->Leave();
  if (communicator->windows.live() > 0)
    CountNcclMisuse("a communicator is destroyed that still has a window");
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->rank->Abort();
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t* out, ncclConfig_t*) {
  *out = nullptr;
  return Refuse(ncclInvalidUsage, "the fake does not split communicators");
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
  *count = communicator->rank->world();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = communicator->rank->rank();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int* device) {
  *device = communicator->device;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t communicator) {
  if (communicator != nullptr && !communicator->rank->error().empty())
    last_error = communicator->rank->error();
  return last_error.c_str();
}

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  const cudaError_t error = cudaMalloc(data, bytes);
  if (error != cudaSuccess) return Refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
  bitshard::fake::NoteNcclMemory(*data, bytes);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  if (!bitshard::fake::ForgetNcclMemory(data)) {
    CountNcclMisuse("memory is freed that is not of ncclMemAlloc, or has a window");
    return Refuse(ncclInvalidUsage, "not of ncclMemAlloc, or it has a window");
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* begin, size_t bytes,
                                    ncclWindow_t* window, int flags) {
  *window = nullptr;
  const Inside inside(communicator);
  NcclRank& rank = *communicator->rank;
  const ncclResult_t ready = Ready(communicator);
  if (ready != ncclSuccess) return ready;
  const std::string fault = bitshard::fake::NcclWindowFault(rank.rank());
  if (fault == "none") return ncclSuccess;
  if (fault == "refuse") return Refuse(ncclInvalidUsage, "told to refuse windows");
  const std::string wrong =
      fault == "break" ? "told to fail" : bitshard::fake::WrongWith(begin, bytes, flags);
  const bool symmetric = fault != "local";
  const auto make = [communicator, begin, bytes, symmetric, window, wrong] {
    if (wrong.empty()) {
      *window = communicator->windows.Add(begin, bytes, symmetric);
    } else {
      communicator->rank->Fail(ncclUnhandledCudaError, wrong);
    }
  };
  rank.Agree(Call(NcclOp::kRegister, bytes, ncclInt8), /*in_background=*/!communicator->blocking,
             /*hangs=*/fault == "hang", make);
  if (communicator->blocking) return rank.state();
  GoOnInBackground(communicator);
  return ncclSuccess;  // also NCCL's
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
  if (window == nullptr) return ncclSuccess;
  const Inside inside(communicator);
  if (HasGraphs(communicator)) CountNcclMisuse("a window is deregistered that graphs may use");
  return communicator->windows.Remove(window)
             ? ncclSuccess
             : Refuse(ncclInvalidArgument, "no window of this communicator");
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kAllReduce, count, type, 0, reduction), from, to},
              stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator,
                               cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kReduceScatter, count, type, 0, reduction), from, to},
              stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kAllGather, count, type), from, to}, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kBroadcast, count, type, root), from, to}, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kSend, count, type, peer), from, nullptr}, stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Post(communicator, {Call(NcclOp::kRecv, count, type, peer), nullptr, to}, stream);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return Refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return ncclSuccess;
  const std::vector<Grouped> grouped = std::exchange(group, {});
  std::vector<NcclWork> works;
  for (const Grouped& one : grouped) {
    if (one.communicator != grouped[0].communicator || one.stream != grouped[0].stream)
      return Refuse(ncclInvalidUsage, "the fake's groups are of one communicator and stream");
    works.push_back(one.work);
  }
  if (works.empty()) return ncclSuccess;
  const Inside inside(grouped[0].communicator);
  return Enqueue(grouped[0].communicator, std::move(works), grouped[0].stream);
}

}  // extern "C"
