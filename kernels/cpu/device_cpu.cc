// The CPU as a Device: memory of the heap, work done before the call returns, graphs as lists of
// closures. Its arithmetic is not here (kernels/registry): kernels() is null.
//
// The lock guards the table of buffers; a stream and its capture are one thread's.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"

namespace bitshard {
namespace {

constexpr size_t kAlignment = 256;

// The value after "name   :" in a file of such lines, "" when it is not there.
std::string LineOf(const char* path, absl::string_view name) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, name)) continue;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (absl::ConsumePrefix(&rest, ":")) return std::string(absl::StripAsciiWhitespace(rest));
  }
  return "";
}

using Work = std::function<void()>;

class CpuStream;
// The stream that this thread captures; null: none.
thread_local CpuStream* captured_here = nullptr;

class CpuStream final : public DeviceStream {
 public:
  ~CpuStream() override {
    if (captured_here == this) captured_here = nullptr;
  }
  void* native() const override { return nullptr; }

  bool captured = false;
  // Of the capture in progress.
  bool spoiled = false;
  std::vector<Work> work;
};

class CpuEvent final : public DeviceEvent {
 public:
  std::chrono::steady_clock::time_point recorded;
};

class CpuGraph final : public DeviceGraph {
 public:
  explicit CpuGraph(std::vector<Work> work) : work(std::move(work)) {}
  const std::vector<Work> work;
};

CpuStream& Of(DeviceStream& stream) { return static_cast<CpuStream&>(stream); }

absl::Status Spoil(CpuStream& stream, absl::string_view what) {
  stream.spoiled = true;
  return absl::FailedPreconditionError(
      absl::StrCat("cpu: ", what, " while a stream is captured: do it before or after"));
}
absl::Status OutsideCapture(absl::string_view what) {
  return captured_here == nullptr ? absl::OkStatus() : Spoil(*captured_here, what);
}
absl::Status Uncaptured(DeviceStream& stream, absl::string_view what) {
  return !Of(stream).captured ? absl::OkStatus() : Spoil(Of(stream), what);
}

class CpuDevice final : public Device {
 public:
  CpuDevice() {
    facts_.kind = "cpu";
    facts_.name = LineOf("/proc/cpuinfo", "model name");
    if (facts_.name.empty()) facts_.name = "CPU";
    facts_.total_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  ~CpuDevice() override { CHECK(host_.empty()) << host_.size() << " buffers outlive their device"; }

  const DeviceFacts& facts() const override { return facts_; }
  const DeviceKernels* kernels() const override { return nullptr; }

  absl::StatusOr<DeviceMemory> Mem() const override {
    const std::string line = LineOf("/proc/meminfo", "MemAvailable");
    absl::string_view text = line;
    absl::ConsumeSuffix(&text, " kB");
    uint64_t kib = 0;
    if (!absl::SimpleAtoi(text, &kib)) {
      return absl::UnavailableError("cpu: /proc/meminfo has no MemAvailable");
    }
    return DeviceMemory{.free_bytes = kib * 1024, .total_bytes = facts_.total_bytes};
  }

  absl::StatusOr<DeviceBuffer> Alloc(size_t bytes) override { return Allocate(bytes, false); }
  absl::StatusOr<DeviceBuffer> AllocHost(size_t bytes) override { return Allocate(bytes, true); }

  absl::StatusOr<void*> Mapped(const DeviceBuffer& host) override {
    std::lock_guard<std::mutex> lock(mu_);
    const auto entry = host_.find(host.data());
    if (entry == host_.end() || !entry->second) {
      return absl::InvalidArgumentError("cpu: Mapped wants memory of AllocHost");
    }
    return static_cast<void*>(host.data());
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, DeviceStream& stream) override {
    if (bytes > 0) Enqueue(stream, [=] { std::memmove(to, from, bytes); });
    return absl::OkStatus();
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, DeviceStream& stream) override {
    if (bytes > 0) Enqueue(stream, [=] { std::memset(to, value, bytes); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<CpuStream>());
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<CpuEvent>());
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewTimedEvent() override { return NewEvent(); }
  absl::StatusOr<int64_t> ElapsedNs(DeviceEvent& from, DeviceEvent& to) override {
    const auto elapsed =
        static_cast<CpuEvent&>(to).recorded - static_cast<CpuEvent&>(from).recorded;
    return std::chrono::nanoseconds(elapsed).count();
  }
  // All work before a Record is over when Record is called.
  absl::Status Record(DeviceEvent& event, DeviceStream& stream) override {
    RETURN_IF_ERROR(Uncaptured(stream, "Record"));
    static_cast<CpuEvent&>(event).recorded = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::Status Wait(DeviceStream& stream, DeviceEvent&) override {
    return Uncaptured(stream, "Wait");
  }
  absl::StatusOr<bool> Done(DeviceEvent&) override {
    RETURN_IF_ERROR(OutsideCapture("Done"));
    return true;
  }
  absl::Status Sync(DeviceStream&) override { return OutsideCapture("Sync"); }

  absl::Status BeginCapture(DeviceStream& stream) override {
    RETURN_IF_ERROR(OutsideCapture("BeginCapture"));
    captured_here = &Of(stream);
    Of(stream).captured = true;
    Of(stream).spoiled = false;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture(DeviceStream& stream) override {
    if (captured_here != &stream) {
      return absl::FailedPreconditionError("cpu: EndCapture without BeginCapture on this thread");
    }
    captured_here = nullptr;
    Of(stream).captured = false;
    std::vector<Work> work = std::exchange(Of(stream).work, {});
    if (Of(stream).spoiled) {
      return absl::FailedPreconditionError(
          "cpu: the capture was spoiled by a call that may not happen meanwhile");
    }
    return std::unique_ptr<DeviceGraph>(std::make_unique<CpuGraph>(std::move(work)));
  }
  absl::Status Launch(DeviceGraph& graph, DeviceStream& stream) override {
    RETURN_IF_ERROR(Uncaptured(stream, "Launch"));
    for (const Work& work : static_cast<CpuGraph&>(graph).work) work();
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, bool pinned) {
    RETURN_IF_ERROR(OutsideCapture("an allocation"));
    if (bytes == 0) return DeviceBuffer();
    void* data = nullptr;
    if (bytes <= facts_.total_bytes) {
      data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
    if (data == nullptr) {
      ASSIGN_OR_RETURN(const DeviceMemory memory, Mem());
      return absl::ResourceExhaustedError(absl::StrCat("cpu: ", bytes, " bytes asked, ",
                                                       memory.free_bytes, " of ",
                                                       memory.total_bytes, " free"));
    }
    std::lock_guard<std::mutex> lock(mu_);
    host_[data] = pinned;
    return DeviceBuffer(data, bytes, [this](void* gone) { Free(gone); });
  }
  void Free(void* data) {
    if (captured_here != nullptr) captured_here->spoiled = true;
    std::lock_guard<std::mutex> lock(mu_);
    CHECK_EQ(host_.erase(data), 1u);
    std::free(data);
  }

  static void Enqueue(DeviceStream& stream, Work work) {
    if (!Of(stream).captured) return work();
    Of(stream).work.push_back(std::move(work));
  }

  DeviceFacts facts_;
  std::mutex mu_;
  std::map<void*, bool> host_;  // buffers; true: by AllocHost
};

absl::StatusOr<std::unique_ptr<Device>> OpenCpu(int index) {
  if (index != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu:", index, ": there is one CPU device, cpu:0"));
  }
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>());
}

const RegisterDevice kRegistered("cpu", &OpenCpu);

}  // namespace
}  // namespace bitshard
