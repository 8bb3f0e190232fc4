#include "tests/support/fake_cudart.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/cuda/emu/memory.h"
#include "kernels/cuda/emu/state.h"
#include "kernels/cuda/emu/stream_hook.h"
#include "tests/support/fake_cuda_machine.h"
#include "tests/support/fake_cuda_memory.h"
#include "tests/support/fake_cuda_streams.h"

namespace bitshard::fake {
namespace {

// ---- What there is.

struct Failure {
  cudaError_t error;
  int skip;
};

// Never destroyed: threads of streams may run while the process exits.
struct Runtime {
  std::mutex mu;
  std::optional<CudaMachine> machine;
  std::map<std::string, Failure> failures;

  Streams streams;
  Memory memory;
};

Runtime& Get() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

void Configure(const CudaMachine& machine) {
  Runtime& runtime = Get();
  runtime.streams.Reset(machine.lazy);
  runtime.memory.Reset();
  emu::ProtectDeviceMemory(machine.protect);
  std::lock_guard<std::mutex> lock(runtime.mu);
  runtime.machine = machine;
  runtime.failures.clear();
}

CudaMachine Machine() {
  static std::once_flag once;
  std::call_once(once, [] {
    bool configured = false;
    {
      std::lock_guard<std::mutex> lock(Get().mu);
      configured = Get().machine.has_value();
    }
    if (!configured) Configure(MachineFromEnvironment());
  });
  std::lock_guard<std::mutex> lock(Get().mu);
  return *Get().machine;
}

// ---- What happens around every call.

thread_local int current_device = 0;
std::atomic<uint64_t> bytes_to_host{0};
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Injected(const char* function) {
  Runtime& runtime = Get();
  std::lock_guard<std::mutex> lock(runtime.mu);
  const auto entry = runtime.failures.find(function);
  if (entry == runtime.failures.end() || entry->second.skip-- > 0) return cudaSuccess;
  const cudaError_t error = entry->second.error;
  runtime.failures.erase(entry);
  return error;
}

enum class Kind {
  kPlain,
  kRelease,  // happens on a broken device too
  kMachine,  // is not about a device's work
};

template <typename Body>
cudaError_t Call(const char* function, Kind kind, Body body) {
  const CudaMachine machine = Machine();
  cudaError_t error = Injected(function);
  if (error == cudaSuccess && machine.driver / 1000 < CUDART_VERSION / 1000) {
    error = cudaErrorInsufficientDriver;
  }
  if (error == cudaSuccess && machine.devices == 0) error = cudaErrorNoDevice;
  cudaError_t broken = cudaSuccess;
  if (error == cudaSuccess && kind != Kind::kMachine) broken = Get().streams.Broken(current_device);
  if (error == cudaSuccess && (broken == cudaSuccess || kind == Kind::kRelease)) {
    error = body(machine);
  }
  if (broken != cudaSuccess) error = broken;
  if (error != cudaSuccess) last_error = error;
  return error;
}

// For what a graph could not repeat.
template <typename Body>
cudaError_t CallOutsideCapture(const char* function, Kind kind, Body body) {
  return Call(function, kind, [&](const CudaMachine& machine) -> cudaError_t {
    if (Get().streams.ForbiddenByCapture()) return cudaErrorStreamCaptureUnsupported;
    if (OnStreamThread()) return cudaErrorNotPermitted;
    return body(machine);
  });
}

// ---- What the streams ran.

std::mutex record_mu;
bool recording = false;
std::vector<RanWork> record;

void Ran(const char* what, bool early = false) {
  const std::lock_guard<std::mutex> lock(record_mu);
  if (recording) record.push_back({what, early});
}

void RanKernel() {
  const std::lock_guard<std::mutex> lock(emu::LaunchLock());
  Ran(emu::launch.kernel, emu::launch.shape.overlaps_previous);
}

cudaError_t EnqueueKernel(cudaStream_t stream, std::function<void()> work) {
  return Call("cudaLaunchKernel", Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Enqueue(stream, current_device, /*other_devices=*/false,
                                 [work = std::move(work)] {
                                   work();
                                   RanKernel();
                                   return cudaSuccess;
                                 });
  });
}

// Launches of the emulator come here.
[[maybe_unused]] const emu::EnqueueHook kHookBefore = emu::SetEnqueueHook(&EnqueueKernel);

bool FitsKind(Place to, Place from, cudaMemcpyKind kind) {
  const bool to_device = to == Place::kDevice, from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t EnqueueCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream) {
  Runtime& runtime = Get();
  const Place target = runtime.memory.Find(to, bytes), source = runtime.memory.Find(from, bytes);
  if (target == Place::kNowhere || source == Place::kNowhere) return cudaErrorInvalidValue;
  if (!FitsKind(target, source, kind)) return cudaErrorInvalidMemcpyDirection;
  if ((target == Place::kPageable || source == Place::kPageable) &&
      runtime.streams.IsCapturing(stream, current_device)) {
    runtime.streams.InvalidateCapture(stream, current_device);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (source == Place::kDevice && target != Place::kDevice) bytes_to_host += bytes;
  return runtime.streams.Enqueue(stream, current_device, /*other_devices=*/true, [=] {
    Ran("copy");
    return Get().memory.Copy(to, from, bytes);
  });
}

}  // namespace

// ---- What tests ask for.

ScopedCudaMachine::ScopedCudaMachine(const CudaMachine& machine) {
  Configure(machine);
  current_device = 0;
  last_error = cudaSuccess;
}

ScopedCudaMachine::~ScopedCudaMachine() {
  Configure(MachineFromEnvironment());
  current_device = 0;
  last_error = cudaSuccess;
}

void FailCall(const std::string& function, cudaError_t error, int skip) {
  Machine();
  std::lock_guard<std::mutex> lock(Get().mu);
  Get().failures[function] = {error, skip};
}

void BreakDevice(int device, cudaError_t error, int works) {
  Machine();
  Get().streams.Break(device, error, works);
}

void HoldDevice(int device) { Get().streams.Hold(device); }
void AwaitHeldWork(int device) { Get().streams.AwaitHeld(device); }
void ResumeDevice(int device) { Get().streams.Resume(device); }

cudaError_t EnqueueHostWork(cudaStream_t stream, std::function<void()> work) {
  return Call("EnqueueHostWork", Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Enqueue(stream, current_device, /*other_devices=*/true,
                                 [work = std::move(work)] {
                                   work();
                                   Ran("host");
                                   return cudaSuccess;
                                 });
  });
}

void StartRecord() {
  const std::lock_guard<std::mutex> lock(record_mu);
  record.clear();
  recording = true;
}

std::vector<RanWork> EndRecord() {
  const std::lock_guard<std::mutex> lock(record_mu);
  recording = false;
  return std::exchange(record, {});
}

uint64_t BytesToHost() { return bytes_to_host; }

int LiveObjects() { return Get().streams.Live() + Get().memory.Live(); }

uint64_t ObjectsMade() { return Get().streams.Made() + Get().memory.Made(); }

}  // namespace bitshard::fake

// ---- The runtime.

using bitshard::fake::AttributeOf;
using bitshard::fake::Call;
using bitshard::fake::CallOutsideCapture;
using bitshard::fake::CudaMachine;
using bitshard::fake::current_device;
using bitshard::fake::EnqueueCopy;
using bitshard::fake::ErrorName;
using bitshard::fake::ErrorText;
using bitshard::fake::Get;
using bitshard::fake::Kind;
using bitshard::fake::last_error;
using bitshard::fake::Machine;
using bitshard::fake::Place;
using bitshard::fake::Ran;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t broken = Get().streams.Broken(current_device);
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return broken != cudaSuccess ? broken : error;
}
cudaError_t cudaPeekAtLastError() {
  const cudaError_t broken = Get().streams.Broken(current_device);
  return broken != cudaSuccess ? broken : last_error;
}
const char* cudaGetErrorName(cudaError_t error) { return ErrorName(error); }
const char* cudaGetErrorString(cudaError_t error) { return ErrorText(error); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Machine().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine& machine) {
    *count = machine.devices;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine& machine) {
    if (device < 0 || device >= machine.devices) return cudaErrorInvalidDevice;
    current_device = device;
    return Get().streams.Broken(device);
  });
}
cudaError_t cudaGetDevice(int* device) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine&) {
    *device = current_device;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine& machine) {
    if (device < 0 || device >= machine.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "fake CUDA device %d", device);
    properties->totalGlobalMem = machine.bytes;
    properties->major = machine.compute_capability / 10;
    properties->minor = machine.compute_capability % 10;
    properties->multiProcessorCount = machine.multiprocessors;
    properties->warpSize = 32;
    // The same from every process, as of one host.
    properties->uuid.bytes[0] = 'f';
    properties->uuid.bytes[15] = static_cast<char>(device);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine& machine) {
    if (device < 0 || device >= machine.devices) return cudaErrorInvalidDevice;
    const std::optional<int> found = AttributeOf(machine, attribute);
    *value = found.value_or(0);
    return found.has_value() ? cudaSuccess : cudaErrorNotSupported;
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int device, int peer) {
  return Call(__func__, Kind::kMachine, [&](const CudaMachine& machine) {
    for (const int index : {device, peer}) {
      if (index < 0 || index >= machine.devices) return cudaErrorInvalidDevice;
    }
    *reaches = machine.peers && device != peer ? 1 : 0;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.SynchronizeDevice(current_device, /*captures_are_errors=*/true);
  });
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return CallOutsideCapture(__func__, Kind::kPlain, [&](const CudaMachine& machine) {
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    return Get().memory.Allocate(current_device, bytes, machine.bytes, data);
  });
}
cudaError_t cudaFree(void* data) {
  return CallOutsideCapture(__func__, Kind::kRelease, [&](const CudaMachine&) {
    if (data == nullptr) return cudaSuccess;
    int device = 0;
    if (const cudaError_t error = Get().memory.DeviceOf(data, &device)) return error;
    const cudaError_t late = Get().streams.SynchronizeDevice(device, /*captures_are_errors=*/false);
    const cudaError_t error = Get().memory.Free(data);
    return error != cudaSuccess ? error : late;
  });
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  return CallOutsideCapture(__func__, Kind::kPlain, [&](const CudaMachine&) {
    *data = nullptr;
    return bytes == 0 ? cudaSuccess : Get().memory.AllocatePinned(bytes, data);
  });
}
cudaError_t cudaFreeHost(void* data) {
  return CallOutsideCapture(__func__, Kind::kRelease, [&](const CudaMachine&) {
    return data == nullptr ? cudaSuccess : Get().memory.FreePinned(data);
  });
}
cudaError_t cudaHostGetDevicePointer(void** mapped, void* data, unsigned int) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    *mapped = data;
    return Get().memory.Find(data, 1) == Place::kPinned ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine& machine) {
    *free_bytes = machine.bytes - Get().memory.Used(current_device);
    *total_bytes = machine.bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return bytes == 0 ? cudaSuccess : EnqueueCopy(to, from, bytes, kind, stream);
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return CallOutsideCapture(__func__, Kind::kPlain, [&](const CudaMachine&) -> cudaError_t {
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t error = EnqueueCopy(to, from, bytes, kind, nullptr)) return error;
    return Get().streams.Synchronize(nullptr, current_device);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) -> cudaError_t {
    if (bytes == 0) return cudaSuccess;
    const Place place = Get().memory.Find(to, bytes);
    if (place != Place::kDevice && place != Place::kPinned) return cudaErrorInvalidValue;
    return Get().streams.Enqueue(stream, current_device, /*other_devices=*/true, [=] {
      Ran("fill");
      return Get().memory.Fill(to, static_cast<unsigned char>(value), bytes);
    });
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    return Get().streams.Create(current_device, stream);
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call(__func__, Kind::kRelease,
              [&](const CudaMachine&) { return Get().streams.Destroy(stream); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Synchronize(stream, current_device);
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.Query(stream, current_device); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Wait(stream, current_device, event);
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    if (flags != cudaEventDisableTiming && flags != cudaEventDefault) return cudaErrorNotSupported;
    return Get().streams.CreateEvent(current_device, flags == cudaEventDefault, event);
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call(__func__, Kind::kRelease,
              [&](const CudaMachine&) { return Get().streams.DestroyEvent(event); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Record(event, stream, current_device);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.QueryEvent(event); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.Elapsed(milliseconds, from, to); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.SynchronizeEvent(event); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.BeginCapture(stream, mode); });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return Call(__func__, Kind::kRelease,
              [&](const CudaMachine&) { return Get().streams.EndCapture(stream, graph); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.CaptureStatus(stream, current_device, status);
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return Call(__func__, Kind::kPlain,
              [&](const CudaMachine&) { return Get().streams.Instantiate(executable, graph); });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Upload(executable, stream, current_device);
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return Call(__func__, Kind::kPlain, [&](const CudaMachine&) {
    return Get().streams.Launch(executable, stream, current_device);
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call(__func__, Kind::kRelease,
              [&](const CudaMachine&) { return Get().streams.DestroyGraph(graph); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return Call(__func__, Kind::kRelease,
              [&](const CudaMachine&) { return Get().streams.DestroyExecutable(executable); });
}

}  // extern "C"
