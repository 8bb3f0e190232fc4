// CUDA as a Device, over the CUDA runtime. In tests the same file runs on a fake of the runtime
// (tests/support/fake_cudart.h).
//
// A process uses one GPU. Its context is the primary one, made by the first call. Streams do not
// wait for the default stream, which nobody uses. Captures are thread-local: what other threads do
// meanwhile (a watchdog's queries) does not touch them.
#include "kernels/cuda/device_cuda.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <cuda_runtime_api.h>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

#ifndef BITSHARD_CUDA_CODE
#error "kernels/cuda/BUILD.bazel defines BITSHARD_CUDA_CODE: what the kernels are compiled for"
#endif

namespace bitshard {
namespace {

constexpr char kUseCpu[] = "use --device=cpu or --device=auto";

MakeCudaKernelsFn& MakeKernels() {
  static MakeCudaKernelsFn make = nullptr;
  return make;
}

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

class CudaStream;
// The stream that this thread captures; null: none.
thread_local CudaStream* captured_here = nullptr;

// What cannot be freed is gone until the process ends. On a lost device nothing can.
void Freed(cudaError_t error, const char* call) {
  const absl::Status status = CudaStatus(error, call);
  if (!status.ok() && !IsDeviceLost(status)) LogWarning("cuda: {}", status.ToString());
}

class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  ~CudaStream() override {
    if (captured_here == this) {
      cudaGraph_t graph = nullptr;
      Freed(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
      if (graph != nullptr) Freed(cudaGraphDestroy(graph), "cudaGraphDestroy");
      captured_here = nullptr;
    }
    Freed(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  void* native() const override { return stream_; }
  cudaStream_t get() const { return stream_; }

  bool spoiled = false;  // the capture in progress

 private:
  const cudaStream_t stream_;
};

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { Freed(cudaEventDestroy(event_), "cudaEventDestroy"); }
  cudaEvent_t get() const { return event_; }

 private:
  const cudaEvent_t event_;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override { Freed(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy"); }
  cudaGraphExec_t get() const { return graph_; }

 private:
  const cudaGraphExec_t graph_;
};

cudaStream_t Of(DeviceStream& stream) { return static_cast<CudaStream&>(stream).get(); }
cudaEvent_t Of(DeviceEvent& event) { return static_cast<CudaEvent&>(event).get(); }

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceFacts facts, std::unique_ptr<DeviceKernels> kernels)
      : facts_(std::move(facts)), kernels_(std::move(kernels)) {}

  const DeviceFacts& facts() const override { return facts_; }
  const DeviceKernels* kernels() const override { return kernels_.get(); }

  absl::StatusOr<DeviceMemory> Mem() const override {
    RETURN_IF_ERROR(Use());
    size_t free_bytes = 0, total_bytes = 0;
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return DeviceMemory{.free_bytes = free_bytes, .total_bytes = total_bytes};
  }

  absl::StatusOr<DeviceBuffer> Alloc(size_t bytes) override {
    RETURN_IF_ERROR(UseOutsideCapture("Alloc"));
    if (bytes == 0) return DeviceBuffer();
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    RETURN_IF_ERROR(Explained(CudaStatus(error, "cudaMalloc"), bytes));
    return DeviceBuffer(data, bytes, [index = facts_.index](void* gone) {
      cudaSetDevice(index);
      Freed(cudaFree(gone), "cudaFree");
    });
  }
  absl::StatusOr<DeviceBuffer> AllocHost(size_t bytes) override {
    RETURN_IF_ERROR(UseOutsideCapture("AllocHost"));
    if (bytes == 0) return DeviceBuffer();
    void* data = nullptr;
    const absl::Status status = CudaStatus(
        cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      return absl::ResourceExhaustedError(absl::StrCat(
          Who(), ": ", bytes, " bytes of pinned host memory asked; ",
          "the host's memory is full, or its container's limit reached (", status.message(), ")"));
    }
    RETURN_IF_ERROR(status);
    return DeviceBuffer(data, bytes, [index = facts_.index](void* gone) {
      cudaSetDevice(index);
      Freed(cudaFreeHost(gone), "cudaFreeHost");
    });
  }
  absl::StatusOr<void*> Mapped(const DeviceBuffer& host) override {
    RETURN_IF_ERROR(Use());
    void* mapped = nullptr;
    const absl::Status status =
        CudaStatus(cudaHostGetDevicePointer(&mapped, host.data(), 0), "cudaHostGetDevicePointer");
    if (!status.ok() && !IsDeviceLost(status)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Who(), ": Mapped wants memory of AllocHost (", status.message(), ")"));
    }
    RETURN_IF_ERROR(status);
    return mapped;
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, DeviceStream& stream) override {
    RETURN_IF_ERROR(Use());
    if (bytes == 0) return absl::OkStatus();
    return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Of(stream)),
                      "cudaMemcpyAsync");
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, DeviceStream& stream) override {
    RETURN_IF_ERROR(Use());
    if (bytes == 0) return absl::OkStatus();
    return CudaStatus(cudaMemsetAsync(to, value, bytes, Of(stream)), "cudaMemsetAsync");
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    RETURN_IF_ERROR(Use());
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags"));
    return std::unique_ptr<DeviceStream>(std::make_unique<CudaStream>(stream));
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return MakeEvent(cudaEventDisableTiming);
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewTimedEvent() override {
    return MakeEvent(cudaEventDefault);
  }
  absl::StatusOr<int64_t> ElapsedNs(DeviceEvent& from, DeviceEvent& to) override {
    RETURN_IF_ERROR(UseOutsideCapture("ElapsedNs"));
    float milliseconds = 0;
    RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, Of(from), Of(to)), "cudaEventElapsedTime"));
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }
  absl::Status Record(DeviceEvent& event, DeviceStream& stream) override {
    RETURN_IF_ERROR(UseUncaptured(stream, "Record"));
    return CudaStatus(cudaEventRecord(Of(event), Of(stream)), "cudaEventRecord");
  }
  absl::Status Wait(DeviceStream& stream, DeviceEvent& event) override {
    RETURN_IF_ERROR(UseUncaptured(stream, "Wait"));
    return CudaStatus(cudaStreamWaitEvent(Of(stream), Of(event), 0), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> Done(DeviceEvent& event) override {
    RETURN_IF_ERROR(UseOutsideCapture("Done"));
    const cudaError_t error = cudaEventQuery(Of(event));
    if (error != cudaErrorNotReady) {
      RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
      return true;
    }
    cudaGetLastError();  // an answer, but CUDA remembers it as an error
    return false;
  }
  absl::Status Sync(DeviceStream& stream) override {
    RETURN_IF_ERROR(UseOutsideCapture("Sync"));
    return CudaStatus(cudaStreamSynchronize(Of(stream)), "cudaStreamSynchronize");
  }

  absl::Status BeginCapture(DeviceStream& stream) override {
    RETURN_IF_ERROR(UseOutsideCapture("BeginCapture"));
    RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal),
                               "cudaStreamBeginCapture"));
    captured_here = &static_cast<CudaStream&>(stream);
    captured_here->spoiled = false;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(DeviceStream& stream) override {
    RETURN_IF_ERROR(Use());
    if (captured_here != &stream) {
      return absl::FailedPreconditionError(
          absl::StrCat(Who(), ": EndCapture without BeginCapture on this thread"));
    }
    captured_here = nullptr;
    cudaGraph_t graph = nullptr;
    absl::Status status =
        CudaStatus(cudaStreamEndCapture(Of(stream), &graph), "cudaStreamEndCapture");
    if (status.ok() && static_cast<CudaStream&>(stream).spoiled) {
      status = absl::FailedPreconditionError(
          absl::StrCat(Who(), ": the capture was spoiled by a call that may not happen meanwhile"));
    }
    cudaGraphExec_t executable = nullptr;
    if (status.ok()) {
      status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    }
    if (graph != nullptr) Freed(cudaGraphDestroy(graph), "cudaGraphDestroy");
    RETURN_IF_ERROR(status);
    auto captured = std::make_unique<CudaGraph>(executable);
    // Else the first launch takes the graph's memory on the device, and the time for that.
    RETURN_IF_ERROR(CudaStatus(cudaGraphUpload(executable, Of(stream)), "cudaGraphUpload"));
    return std::unique_ptr<DeviceGraph>(std::move(captured));
  }
  absl::Status Launch(DeviceGraph& graph, DeviceStream& stream) override {
    RETURN_IF_ERROR(UseUncaptured(stream, "Launch"));
    return CudaStatus(cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), Of(stream)),
                      "cudaGraphLaunch");
  }

 private:
  std::string Who() const { return absl::StrCat("cuda:", facts_.index, " (", facts_.name, ")"); }

  // Makes the device the calling thread's.
  absl::Status Use() const { return CudaStatus(cudaSetDevice(facts_.index), "cudaSetDevice"); }

  absl::Status Spoil(CudaStream& stream, absl::string_view what) const {
    stream.spoiled = true;
    return absl::FailedPreconditionError(
        absl::StrCat(Who(), ": ", what, " while a stream is captured: do it before or after"));
  }
  absl::Status UseOutsideCapture(absl::string_view what) const {
    return captured_here == nullptr ? Use() : Spoil(*captured_here, what);
  }
  absl::Status UseUncaptured(DeviceStream& stream, absl::string_view what) const {
    return captured_here != &stream ? Use() : Spoil(*captured_here, what);
  }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> MakeEvent(unsigned int flags) {
    RETURN_IF_ERROR(Use());
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags"));
    return std::unique_ptr<DeviceEvent>(std::make_unique<CudaEvent>(event));
  }

  // Says next to an out-of-memory error how much was asked and is free.
  absl::Status Explained(const absl::Status& status, size_t bytes) const {
    if (status.code() != absl::StatusCode::kResourceExhausted) return status;
    std::string free_text = "unknown";
    if (const absl::StatusOr<DeviceMemory> memory = Mem(); memory.ok()) {
      free_text = absl::StrCat(memory->free_bytes, " of ", memory->total_bytes);
    }
    return absl::ResourceExhaustedError(absl::StrCat(Who(), ": ", bytes, " bytes asked, ",
                                                     free_text, " free (", status.message(), ")"));
  }

  const DeviceFacts facts_;
  const std::unique_ptr<DeviceKernels> kernels_;
};

// ---- Opening.

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&value, attribute, index), "cudaDeviceGetAttribute"));
  return value;
}

std::string VisibleDevices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "CUDA_VISIBLE_DEVICES is not set"
                            : absl::StrCat("CUDA_VISIBLE_DEVICES is \"", visible, "\"");
}

// How many devices this process sees, or why none.
absl::StatusOr<int> CountDevices(int driver) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver && driver == 0) {
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat(
        "no CUDA device: no NVIDIA driver is loaded here. Install one (nvidia-smi must work), give "
        "the container devices (docker run --gpus all; Kubernetes: resources.limits nvidia.com/"
        "gpu), or ",
        kUseCpu));
  }
  if (error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device: the driver is for CUDA ", Version(driver),
                     ", older than the CUDA ", Version(CUDART_VERSION),
                     " of this program. Update the driver, build with the toolkit of "
                     "CUDA ",
                     driver / 1000, " (CUDA_HOME), or ", kUseCpu));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat(
        "no CUDA device: the driver (CUDA ", Version(driver), ") shows none to this process. ",
        VisibleDevices(), "; a container needs --gpus all. Or ", kUseCpu));
  }
  RETURN_IF_ERROR(CudaStatus(error, "cudaGetDeviceCount"));
  return count;
}

absl::StatusOr<DeviceFacts> ReadFacts(int index, int driver) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  ASSIGN_OR_RETURN(const int clock_khz, Attribute(cudaDevAttrMemoryClockRate, index));
  ASSIGN_OR_RETURN(const int bus_bits, Attribute(cudaDevAttrGlobalMemoryBusWidth, index));
  DeviceFacts facts;
  facts.kind = "cuda";
  facts.index = index;
  facts.name = properties.name;
  facts.compute_capability = 10 * properties.major + properties.minor;
  facts.architecture = absl::StrCat("sm_", facts.compute_capability);
  facts.multiprocessors = properties.multiProcessorCount;
  facts.total_bytes = properties.totalGlobalMem;
  // Two transfers a clock.
  facts.bandwidth_bytes_per_s =
      2 * uint64_t{1000} * static_cast<uint64_t>(clock_khz) * static_cast<uint64_t>(bus_bits) / 8;
  facts.driver = Version(driver);
  return facts;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int index) {
  // All code at once and now: a kernel that is loaded at its first launch takes memory then.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  int driver = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  ASSIGN_OR_RETURN(const int count, CountDevices(driver));
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda:", index, ": this process sees ", count, count == 1 ? " device, cuda:0" : " devices",
        count == 1 ? "" : absl::StrCat(", cuda:0 to cuda:", count - 1), ". ", VisibleDevices(),
        "; nvidia-smi -L lists all"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), "cudaSetDevice"));
  ASSIGN_OR_RETURN(DeviceFacts facts, ReadFacts(index, driver));
  if (!CudaCodeRuns(BITSHARD_CUDA_CODE, facts.compute_capability)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", index, " (", facts.name, ") is ", facts.architecture,
                     ", and this program has kernels for ", BITSHARD_CUDA_CODE,
                     ". Devices before sm_80 are not supported; for later ones build with "
                     "--config=cuda_all. Or ",
                     kUseCpu));
  }
  // The context is made here, so that what it takes is gone before anybody asks what is free.
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  std::unique_ptr<DeviceKernels> kernels;
  if (MakeKernels() != nullptr) kernels = MakeKernels()(facts);
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(std::move(facts), std::move(kernels)));
}

const RegisterDevice kRegistered("cuda", &OpenCuda);

}  // namespace

RegisterCudaKernels::RegisterCudaKernels(MakeCudaKernelsFn make) {
  CHECK(MakeKernels() == nullptr) << "two kinds of CUDA kernels in one program";
  MakeKernels() = make;
}

bool CudaCodeRuns(absl::string_view code, int compute_capability) {
  for (absl::string_view word : absl::StrSplit(code, ' ', absl::SkipEmpty())) {
    const bool is_ptx = absl::ConsumePrefix(&word, "compute_");
    if (!is_ptx && !absl::ConsumePrefix(&word, "sm_")) continue;
    const bool only_this = absl::ConsumeSuffix(&word, "a");
    int compiled = 0;
    if (!absl::SimpleAtoi(word, &compiled)) continue;
    // Machine code runs on its own generation from its minor version on, PTX on all later ones.
    const bool runs =
        only_this ? compute_capability == compiled
        : is_ptx  ? compute_capability >= compiled
                  : compute_capability / 10 == compiled / 10 && compute_capability >= compiled;
    if (runs) return true;
  }
  return false;
}

}  // namespace bitshard
