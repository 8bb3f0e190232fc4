// The CUDA runtime for machines without a GPU: linked in place of libcudart under the real
// kernels/cuda/device_cuda.cc (and nccl.cc over a fake NCCL), so that all host code of the GPU
// backend runs in tests. Only the calls that this project makes are there; another is missing at
// link time.
//
// Memory of the devices is the emulator's (kernels/cuda/emu/memory.h), and launched kernels go
// through the same streams as copies. Streams are lazy: enqueued work runs when a wait or query
// asks for it, only as far as it asks, and what other streams were waited for first; so a forgotten
// Wait or Sync shows as stale data, the same in every run. Each stream has a thread of its own, on
// which its work runs: a query never blocks and no lock is held while work runs. Asynchronous
// copies read and write host memory when they run, not when they are called.
//
// Errors are those of the real runtime where it documents them: budget of memory, captures (what is
// not allowed meanwhile, and spoils them), freed memory in a graph, sticky errors. Times of events
// are the host's. Not modelled: events recorded or waited for inside a capture, streams that wait
// for the default stream. They are cudaErrorNotSupported.
//
// Two ranks as threads of one process use two devices: cudaFree waits for all streams of its
// device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace bitshard::fake {

// What the machine has. A process that configures nothing gets it from the environment, at the
// first call: BITSHARD_FAKE_CUDA_DEVICES, _SM (90), _MULTIPROCESSORS, _BYTES, _DRIVER (13000), _P2P
// (0 or 1), _STREAMS (lazy, threads), _PROTECT (0 or 1).
struct CudaMachine {
  int devices = 1;
  int compute_capability = 90;
  int multiprocessors = 4;
  uint64_t bytes = uint64_t{1} << 30;  // of each device
  int driver = CUDART_VERSION;         // 0: there is none
  bool peers = true;                   // devices reach each other
  bool lazy = true;                    // false: work runs as soon as its thread gets to it
  bool protect = false;  // host code that follows a pointer of a device dies of SIGSEGV
};

// For the length of a test: the machine, without memory of what was before. Nothing of CUDA is
// alive at either end (checked), but what a broken device kept.
class ScopedCudaMachine {
 public:
  explicit ScopedCudaMachine(const CudaMachine& machine);
  ~ScopedCudaMachine();
  ScopedCudaMachine(const ScopedCudaMachine&) = delete;
};

// The call with this name ("cudaMalloc") fails once, after `skip` that do not.
void FailCall(const std::string& function, cudaError_t error, int skip = 0);

// After `works` more pieces of enqueued work the device is lost: the next does not run, and `error`
// is what every call on the device returns from then on.
void BreakDevice(int device, cudaError_t error, int works = 0);

// No more work of the device begins, as behind a kernel that never ends, until ResumeDevice.
// AwaitHeldWork: until some wants to.
void HoldDevice(int device);
void AwaitHeldWork(int device);
void ResumeDevice(int device);

// Puts work of the host on a stream, or into the capture of it; it may block. Called on the
// stream's thread, where no call of CUDA is allowed but queries.
cudaError_t EnqueueHostWork(cudaStream_t stream, std::function<void()> work);

// What a stream ran.
struct RanWork {
  std::string what;    // "fill", "copy", "host", or the kernel as its launch names it
  bool early = false;  // a kernel that may overlap the end of the one before it
};
// Begins a record, in order, of what the streams run from here on, graphs' work too. REQUIRES: one
// device computes.
void StartRecord();
// Ends it.
std::vector<RanWork> EndRecord();

// Buffers, streams, events and graphs that were made and not destroyed.
int LiveObjects();

// How many of these were made so far, destroyed or not. An executable graph counts twice: its
// memory on the device comes with its upload, or else with its first launch.
uint64_t ObjectsMade();

// What was copied from devices to the host so far; the copies of a graph count when captured.
uint64_t BytesToHost();

}  // namespace bitshard::fake
