#include "tests/support/fake_cuda_machine.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"

#include "kernels/base/check.h"

namespace bitshard::fake {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  uint64_t value = 0;
  CHECK(absl::SimpleAtoi(text, &value)) << name << "=" << text << " is no number";
  return value;
}

// By the table of the CUDA programming guide.
int SharedBytesOfMultiprocessor(int compute_capability) {
  switch (compute_capability) {
    case 80:
      return 164 << 10;
    case 90:
    case 100:
      return 228 << 10;
    default:
      return 100 << 10;
  }
}

struct ErrorWords {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define ERROR_WORDS(name, text) \
  { name, #name, text }
constexpr ErrorWords kErrors[] = {
    ERROR_WORDS(cudaSuccess, "no error"),
    ERROR_WORDS(cudaErrorInvalidValue, "invalid argument"),
    ERROR_WORDS(cudaErrorMemoryAllocation, "out of memory"),
    ERROR_WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR_WORDS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR_WORDS(cudaErrorInsufficientDriver,
                "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR_WORDS(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    ERROR_WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR_WORDS(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR_WORDS(cudaErrorNoKernelImageForDevice,
                "no kernel image is available for execution on the device"),
    ERROR_WORDS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR_WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR_WORDS(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR_WORDS(cudaErrorNotReady, "device not ready"),
    ERROR_WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR_WORDS(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR_WORDS(cudaErrorNotPermitted, "operation not permitted"),
    ERROR_WORDS(cudaErrorNotSupported, "operation not supported"),
    ERROR_WORDS(cudaErrorSystemNotReady, "system not yet initialized"),
    ERROR_WORDS(cudaErrorStreamCaptureUnsupported,
                "operation not permitted when stream is capturing"),
    ERROR_WORDS(cudaErrorStreamCaptureInvalidated,
                "operation failed due to a previous error during capture"),
    ERROR_WORDS(cudaErrorStreamCaptureWrongThread,
                "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef ERROR_WORDS

const ErrorWords& WordsOf(cudaError_t error) {
  static constexpr ErrorWords kOther = {cudaErrorUnknown, "cudaError (without a name in the fake)",
                                        "without words in the fake"};
  for (const ErrorWords& words : kErrors) {
    if (words.error == error) return words;
  }
  return kOther;
}

}  // namespace

CudaMachine MachineFromEnvironment() {
  CudaMachine machine;
  const auto number = [](const char* name, int otherwise) {
    return static_cast<int>(FromEnvironment(name, static_cast<uint64_t>(otherwise)));
  };
  machine.devices = number("BITSHARD_FAKE_CUDA_DEVICES", machine.devices);
  machine.compute_capability = number("BITSHARD_FAKE_CUDA_SM", machine.compute_capability);
  machine.multiprocessors = number("BITSHARD_FAKE_CUDA_MULTIPROCESSORS", machine.multiprocessors);
  machine.bytes = FromEnvironment("BITSHARD_FAKE_CUDA_BYTES", machine.bytes);
  machine.driver = number("BITSHARD_FAKE_CUDA_DRIVER", machine.driver);
  machine.peers = number("BITSHARD_FAKE_CUDA_P2P", 1) != 0;
  machine.protect = number("BITSHARD_FAKE_CUDA_PROTECT", 0) != 0;
  if (const char* const streams = std::getenv("BITSHARD_FAKE_CUDA_STREAMS")) {
    machine.lazy = std::strcmp(streams, "lazy") == 0;
    CHECK(machine.lazy || std::strcmp(streams, "threads") == 0)
        << "BITSHARD_FAKE_CUDA_STREAMS=" << streams << ": use lazy or threads";
  }
  return machine;
}

std::optional<int> AttributeOf(const CudaMachine& machine, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return machine.compute_capability / 10;
    case cudaDevAttrComputeCapabilityMinor:
      return machine.compute_capability % 10;
    case cudaDevAttrMultiProcessorCount:
      return machine.multiprocessors;
    case cudaDevAttrMemoryClockRate:
      return 1'000'000;  // kHz
    case cudaDevAttrGlobalMemoryBusWidth:
      return 1024;  // bits
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return SharedBytesOfMultiprocessor(machine.compute_capability);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return SharedBytesOfMultiprocessor(machine.compute_capability) - (1 << 10);
    default:
      return std::nullopt;
  }
}

const char* ErrorName(cudaError_t error) { return WordsOf(error).name; }
const char* ErrorText(cudaError_t error) { return WordsOf(error).text; }

}  // namespace bitshard::fake
