#include "kernels/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

#include "kernels/tensor/device.h"

namespace bitshard {
namespace {

struct Meaning {
  absl::StatusCode code;
  const char* advice;  // "": none
  bool lost = false;   // every later call of this process fails alike
};

Meaning MeaningOf(cudaError_t error) {
  using Code = absl::StatusCode;
  switch (error) {
    case cudaErrorMemoryAllocation:
      return {Code::kResourceExhausted, "the memory is full: nvidia-smi shows who has it"};

    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorDeviceNotLicensed:
      return {Code::kFailedPrecondition,
              "no CUDA device can be used: look at nvidia-smi, or use --device=cpu or "
              "--device=auto"};
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
      return {Code::kFailedPrecondition,
              "another process has the device for itself: nvidia-smi shows which, and the compute "
              "mode (nvidia-smi -c 0 lets several in)"};
    case cudaErrorSystemNotReady:
      return {Code::kFailedPrecondition,
              "the machine's NVLink switches are not set up yet: is nvidia-fabricmanager running?"};
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return {Code::kFailedPrecondition,
              "the parts of the driver are of different versions: restart after an update of the "
              "driver; in a container remove its compat libraries"};
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
      return {Code::kFailedPrecondition, "the MPS server refused: is it running, has it room?"};
    case cudaErrorInvalidDevice:
      return {Code::kInvalidArgument, "there is no such device: nvidia-smi -L lists them"};

    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
      return {Code::kFailedPrecondition,
              "a stream is being captured: allocate, wait and free before or after"};

    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return {Code::kUnimplemented,
              "this program has no kernels for this device, or the driver is too old for them: "
              "build with --config=cuda_all"};
    case cudaErrorNotSupported:
      return {Code::kUnimplemented, ""};
    case cudaErrorNotPermitted:
    case cudaErrorOperatingSystem:
      return {Code::kFailedPrecondition,
              "the system refused: look at the limits of the container and at dmesg"};

    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
      return {Code::kInternal, "a kernel broke the device's rules: a bug", true};
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
      return {Code::kInternal, "the hardware reports an error: dmesg has its Xid number", true};
    case cudaErrorMpsClientTerminated:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorUnknown:
      return {Code::kInternal, "dmesg may know more", true};

    default:
      return {Code::kInternal, ""};
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const Meaning meaning = MeaningOf(error);
  std::string text =
      absl::StrCat(call, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  if (*meaning.advice != '\0') absl::StrAppend(&text, "; ", meaning.advice);
  if (!meaning.lost) return absl::Status(meaning.code, text);
  return DeviceLostError(absl::StrCat(
      text, ". The device is lost to this process, which must end and be started again"));
}

}  // namespace bitshard
