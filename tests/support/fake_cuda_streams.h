// The streams of the fake CUDA runtime (fake_cudart.h): queues, events, captures, graphs, and the
// threads that run what is in them. No machine, no memory: what a piece of work does is a closure.
//
// Thread-safe. One lock for all, never held while work runs. Streams live until they were destroyed
// and their work is over, whichever is later.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <driver_types.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace bitshard::fake {

// Returns the error that the device is lost to, or cudaSuccess.
using WorkFn = std::function<cudaError_t()>;

// Either something to run, or a wait until `stream` has passed `count` pieces.
struct Work {
  WorkFn run;
  std::shared_ptr<CUstream_st> stream;
  uint64_t count = 0;
};

struct Capture {
  std::thread::id thread;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false;
  std::vector<Work> work;
};

}  // namespace bitshard::fake

struct CUstream_st {
  int device = 0;
  bool is_default = false;
  std::deque<bitshard::fake::Work> queue;
  // Counts of pieces: 0 <= passed <= allowed <= enqueued.
  uint64_t enqueued = 0;
  uint64_t allowed = 0;
  uint64_t passed = 0;
  bool has_thread = false;
  bool closing = false;
  std::unique_ptr<bitshard::fake::Capture> capture;
};
struct CUevent_st {
  int device = 0;
  std::shared_ptr<CUstream_st> stream;  // null: never recorded
  uint64_t count = 0;
  // When the last Record was passed; null: the event is not timed. Shared with the stream's work.
  std::shared_ptr<std::chrono::steady_clock::time_point> time = nullptr;
};
struct CUgraph_st {
  std::vector<bitshard::fake::Work> work;
};
struct CUgraphExec_st {
  std::vector<bitshard::fake::Work> work;
  bool uploaded = false;
};

namespace bitshard::fake {

class Streams {
 public:
  // Ends the threads of the default streams and forgets broken devices; CHECKs that nothing lives.
  void Reset(bool lazy);
  int Live();
  uint64_t Made();  // so far; an executable's upload counts too

  // What every call on the device returns; cudaSuccess while it works.
  cudaError_t Broken(int device);
  void Break(int device, cudaError_t error, int works);
  // HoldDevice, AwaitHeldWork, ResumeDevice.
  void Hold(int device);
  void AwaitHeld(int device);
  void Resume(int device);

  // True, and the capture is spoiled, where this thread (or a capture in global mode) forbids calls
  // that a graph cannot repeat.
  bool ForbiddenByCapture();

  cudaError_t Create(int device, cudaStream_t* stream);
  cudaError_t Destroy(cudaStream_t stream);
  // `device`: whose default stream a null handle is, here and below. Kernels go to streams of the
  // thread's device only.
  cudaError_t Enqueue(cudaStream_t stream, int device, bool other_devices, WorkFn run);
  cudaError_t Synchronize(cudaStream_t stream, int device);
  cudaError_t Query(cudaStream_t stream, int device);
  // Waits for all work of the device; captured streams are passed over, or an error.
  cudaError_t SynchronizeDevice(int device, bool captures_are_errors);

  cudaError_t CreateEvent(int device, bool timed, cudaEvent_t* event);
  cudaError_t DestroyEvent(cudaEvent_t event);
  cudaError_t Record(cudaEvent_t event, cudaStream_t stream, int device);
  cudaError_t Wait(cudaStream_t stream, int device, cudaEvent_t event);
  cudaError_t QueryEvent(cudaEvent_t event);
  cudaError_t SynchronizeEvent(cudaEvent_t event);
  cudaError_t Elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

  bool IsCapturing(cudaStream_t stream, int device);
  void InvalidateCapture(cudaStream_t stream, int device);
  cudaError_t CaptureStatus(cudaStream_t stream, int device, cudaStreamCaptureStatus* status);
  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
  cudaError_t Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph);
  cudaError_t Upload(cudaGraphExec_t executable, cudaStream_t stream, int device);
  cudaError_t Launch(cudaGraphExec_t executable, cudaStream_t stream, int device);
  cudaError_t DestroyGraph(cudaGraph_t graph);
  cudaError_t DestroyExecutable(cudaGraphExec_t executable);

 private:
  using StreamPtr = std::shared_ptr<CUstream_st>;
  using Lock = std::unique_lock<std::mutex>;
  struct Breakage {
    cudaError_t error = cudaSuccess;
    int works = 0;  // still to run
    bool done = false;
  };

  // All below: mu_ is held.
  StreamPtr Find(cudaStream_t stream, int device);
  cudaError_t BrokenLocked(int device) const;
  bool ForbiddenByCaptureLocked();
  cudaError_t Push(CUstream_st& stream, Work work);
  void MakeUploaded(CUgraphExec_st& executable);
  void Force(const StreamPtr& stream, uint64_t count);
  cudaError_t WaitFor(Lock& lock, const StreamPtr& stream, uint64_t count);
  void RunStream(StreamPtr stream);
  bool TakesBreakage(int device);
  void BeginWork(Lock& lock, int device);

  std::mutex mu_;
  std::condition_variable changed_;
  bool lazy_ = true;
  int threads_ = 0;
  uint64_t made_ = 0;
  std::vector<StreamPtr> streams_;  // by age, also those that are closing
  std::set<cudaEvent_t> events_;
  std::set<cudaGraph_t> graphs_;
  std::set<cudaGraphExec_t> executables_;
  std::map<int, Breakage> breakages_;
  std::map<int, int> held_;  // by device: threads with work that may not begin
};

// Whether this thread runs the work of a stream: it must not wait for streams.
bool OnStreamThread();

}  // namespace bitshard::fake
