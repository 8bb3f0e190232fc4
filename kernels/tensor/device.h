// The thin layer between the worker and an accelerator: memory, copies, streams, events, graphs.
//
// Two implementations: kernels/cpu/device_cpu.cc (heap memory, work done at once) and
// kernels/cuda/device_cuda.cc (the CUDA runtime). Work is enqueued on a Stream and runs in its
// order; an error of enqueued work may come back from a later call. Objects are used by one thread
// at a time, except Done and Mem, which any thread may call. Everything that a device made must be
// gone before the device. A thread that launches kernels by other means (DeviceKernels,
// collectives) has called the device before: CUDA keeps the current device a thread, and every call
// here but facts and kernels sets it.
//
// What a device must have at start, in words for the operator: device_limits.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bitshard {

class DeviceKernels;  // kernels/registry/device_kernels.h

struct DeviceFacts {
  std::string kind;  // "cpu", "cuda"
  int index = 0;
  std::string name;            // "NVIDIA H200"
  std::string architecture;    // "sm_90"; of the CPU ""
  int compute_capability = 0;  // 90 for sm_90; 0 without
  int multiprocessors = 0;
  uint64_t total_bytes = 0;
  uint64_t bandwidth_bytes_per_s = 0;  // by its data sheet (bus width x clock); 0 = unknown
  std::string driver;                  // "13.0"; "" = none
};

struct DeviceMemory {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

// Bytes on a device, or pinned ones of the host; freed with the object. Empty when default-made.
class DeviceBuffer {
 public:
  using FreeFn = std::function<void(void*)>;

  DeviceBuffer() = default;
  DeviceBuffer(void* data, size_t bytes, FreeFn free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        free_(std::move(other.free_)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      Release();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      free_ = std::move(other.free_);
    }
    return *this;
  }
  ~DeviceBuffer() { Release(); }

  size_t bytes() const { return bytes_; }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void Release() {
    if (data_ != nullptr) free_(data_);
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  FreeFn free_;
};

// `native` is what the implementation's own library calls it (cudaStream_t ...), null on the CPU.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void* native() const = 0;
};
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};
// Work that was captured from a stream, to be launched again and again. Pointers and numbers in it
// are those of the capture.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;
  // What it computes; null: nothing (the CPU has its own registry).
  virtual const DeviceKernels* kernels() const = 0;

  virtual absl::StatusOr<DeviceMemory> Mem() const = 0;
  // 256-byte aligned, contents undefined; empty for 0 bytes. RESOURCE_EXHAUSTED says how much was
  // asked and is free.
  virtual absl::StatusOr<DeviceBuffer> Alloc(size_t bytes) = 0;
  // Pinned host memory that the device can also reach (Mapped).
  virtual absl::StatusOr<DeviceBuffer> AllocHost(size_t bytes) = 0;
  // The device's address of pinned memory; INVALID_ARGUMENT for other memory.
  virtual absl::StatusOr<void*> Mapped(const DeviceBuffer& host) = 0;

  // Between any two memories; which they are follows from the addresses. Host memory that is not
  // pinned must stay as it is until the stream has passed.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, DeviceStream& stream) = 0;
  virtual absl::Status Fill(void* to, uint8_t value, size_t bytes, DeviceStream& stream) = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() = 0;
  // One that also knows when its last Record was passed.
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> NewTimedEvent() = 0;
  // Nanoseconds from the one to the other, on the device's clock. REQUIRES: timed events, both
  // recorded and passed.
  virtual absl::StatusOr<int64_t> ElapsedNs(DeviceEvent& from, DeviceEvent& to) = 0;
  virtual absl::Status Record(DeviceEvent& event, DeviceStream& stream) = 0;
  // `stream` goes on when the event's last Record has been passed. An event that was never recorded
  // counts as passed.
  virtual absl::Status Wait(DeviceStream& stream, DeviceEvent& event) = 0;
  // Whether the last Record has been passed; does not block.
  virtual absl::StatusOr<bool> Done(DeviceEvent& event) = 0;
  // Until all work of the stream is over; its errors.
  virtual absl::Status Sync(DeviceStream& stream) = 0;

  // Work on `stream` from Begin to End, on one thread, is recorded instead of run. What must not
  // happen meanwhile on that thread (allocation, freeing, Sync, Done) or to that stream (Record,
  // Wait, Launch, a second Begin) is FAILED_PRECONDITION and spoils the capture: EndCapture, which
  // is due in any case, then says so too. Host memory in a Copy is pinned.
  virtual absl::Status BeginCapture(DeviceStream& stream) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(DeviceStream& stream) = 0;
  virtual absl::Status Launch(DeviceGraph& graph, DeviceStream& stream) = 0;
};

// INTERNAL, and the device is of no more use to this process: it must end and be started again.
absl::Status DeviceLostError(absl::string_view text);
bool IsDeviceLost(const absl::Status& status);
// The error with `prefix` before its message; code and payloads stay, so that a lost device is
// still seen as one. OK stays OK.
absl::Status WithContext(const absl::Status& status, absl::string_view prefix);

// Before main: `const RegisterDevice kRegistered("cuda", &OpenCuda);`. `index` counts the devices
// of the kind that this process may see. Opening says what is wrong and what to do: no such device,
// no driver, one that is too old, an architecture without kernels.
using OpenDeviceFn = absl::StatusOr<std::unique_ptr<Device>> (*)(int index);
struct RegisterDevice {
  RegisterDevice(const char* kind, OpenDeviceFn open);
};

// UNIMPLEMENTED for a kind that this program was built without (lists those it has); otherwise as
// the device's own open function says.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& kind, int index);
// Kinds that this program was built with, sorted.
std::vector<std::string> DeviceKinds();

}  // namespace bitshard
