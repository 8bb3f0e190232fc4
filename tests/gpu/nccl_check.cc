#include "tests/gpu/nccl_check.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "kernels/base/status_macros.h"
#include "tests/gpu/probes.h"
#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"
#include "worker/collective/device_collective.h"

namespace bitshard {
namespace {

// Of the first join NCCL's library is loaded and its kernels, too.
constexpr absl::Duration kJoinPatience = absl::Seconds(20);

absl::Status Wrong(const std::string& what) { return absl::InternalError(what); }

class Checks {
 public:
  Checks(Device& device, const NcclCheckOptions& options,
         const std::function<void(const NcclCheckResult&)>& report)
      : device_(device), options_(options), report_(report) {}

  std::vector<NcclCheckResult> Run() {
    if (!Check("a group of one joins without blocking", [&] { return Join(1); })) return results_;
    Check("the host's operations give known patterns",
          [&] { return SelfTestCollective(*collective_); });
    Check("sums of device memory are exact", [&] { return Sums(); });
    Check("device memory is gathered, in place and from elsewhere", [&] { return Gathers(); });
    Check("captured sums and gathers are done at every launch", [&] { return Captured(); });
    Check("sums in a window (without, where the log says so) are exact", [&] { return Window(); });
    Check("an abort ends a wait while a long kernel runs", [&] { return AbortDuringKernel(); });
    if (!Check("the next epoch joins on the same device", [&] { return Join(2); })) return results_;
    Check("its operations give known patterns", [&] { return SelfTestCollective(*collective_); });
    Check("so are they in the next epoch", [&] { return Window(); });
    Check("its graphs are captured anew", [&] { return Captured(); });
    collective_.reset();
    Check("a rank without a partner gives up in time", [&] { return JoinAlone(); });
    if (!Check("and joins a new group", [&] { return Join(4); })) return results_;
    Check("whose operations give known patterns", [&] { return SelfTestCollective(*collective_); });
    collective_.reset();
    return results_;
  }

 private:
  template <typename Function>
  bool Check(const std::string& name, const Function& function) {
    note_.clear();
    const absl::Time begin = absl::Now();
    const absl::Status status = function();
    NcclCheckResult result;
    result.name = name;
    if (!status.ok()) result.error = status.ToString();
    result.note =
        absl::StrCat(absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))),
                     note_.empty() ? "" : ", ", note_);
    report_(result);
    results_.push_back(result);
    return status.ok();
  }

  DeviceGroup Group(uint64_t epoch, int world) const {
    DeviceGroup group;
    group.id = UniqueId("check");
    group.epoch = epoch;
    group.world = world;
    group.device = &device_;
    group.operation_timeout = options_.operation_timeout;
    return group;
  }

  absl::Status Join(uint64_t epoch) {
    collective_.reset();
    DeviceGroup group = Group(epoch, 1);
    group.tell = [](const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
      return std::vector<std::string>{mine};
    };
    if (stream_ == nullptr) {
      ASSIGN_OR_RETURN(stream_, device_.NewStream());
      ASSIGN_OR_RETURN(event_, device_.NewEvent());
    }
    ASSIGN_OR_RETURN(collective_, JoinOverLibrary("nccl", group, kJoinPatience));
    return absl::OkStatus();
  }

  absl::Status JoinAlone() {
    DeviceGroup group = Group(3, 2);
    // The other rank is one that there is not, on a GPU with another id.
    group.tell = [](const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
      std::string other = mine;
      other.back() = other.back() == '0' ? '1' : '0';
      return std::vector<std::string>{mine, other};
    };
    const auto joined = JoinOverLibrary("nccl", group, options_.join_timeout);
    if (joined.ok()) return Wrong("two ranks met, and there is one");
    if (absl::IsUnavailable(joined.status()) &&
        absl::StrContains(joined.status().message(), "not all 2 ranks met within"))
      return absl::OkStatus();
    return joined.status();
  }

  // Until the stream has passed, as the step thread waits.
  absl::Status Await() {
    RETURN_IF_ERROR(device_.Record(*event_, *stream_));
    return collective_->Await(*event_);
  }

  absl::StatusOr<DeviceBuffer> Upload(const std::vector<int64_t>& values) {
    ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Alloc(values.size() * sizeof(int64_t)));
    RETURN_IF_ERROR(device_.Copy(buffer.data(), values.data(), buffer.bytes(), *stream_));
    RETURN_IF_ERROR(device_.Sync(*stream_));
    return buffer;
  }

  absl::Status Expect(const DeviceBuffer& buffer, const std::vector<int64_t>& want,
                      const std::string& what) {
    std::vector<int64_t> got(want.size());
    RETURN_IF_ERROR(
        device_.Copy(got.data(), buffer.data(), got.size() * sizeof(int64_t), *stream_));
    RETURN_IF_ERROR(device_.Sync(*stream_));
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] != want[i])
        return Wrong(absl::StrCat(what, ": element ", i, " is ", got[i], " for ", want[i]));
    }
    return absl::OkStatus();
  }

  static std::vector<int64_t> Pattern(size_t count) {
    std::vector<int64_t> values(count);
    for (size_t i = 0; i < count; ++i)
      values[i] = static_cast<int64_t>(0x9e3779b97f4a7c15u * (i + 1));
    return values;
  }

  absl::Status Sums() {
    for (const size_t count : {size_t{1}, size_t{4096}, size_t{1'000'003}}) {
      const std::vector<int64_t> values = Pattern(count);
      ASSIGN_OR_RETURN(const DeviceBuffer there, Upload(values));
      RETURN_IF_ERROR(collective_->AllReduceSum(there.as<int64_t>(), count, *stream_));
      RETURN_IF_ERROR(Await());
      RETURN_IF_ERROR(Expect(there, values, absl::StrCat(count, " values")));
    }
    return absl::OkStatus();
  }

  absl::Status Gathers() {
    const std::vector<int64_t> values = Pattern(70'001);
    ASSIGN_OR_RETURN(const DeviceBuffer from, Upload(values));
    ASSIGN_OR_RETURN(const DeviceBuffer to, Upload(std::vector<int64_t>(values.size(), -1)));
    RETURN_IF_ERROR(collective_->AllGather(from.data(), to.data(), from.bytes(), *stream_));
    RETURN_IF_ERROR(collective_->AllGather(from.data(), from.data(), from.bytes(), *stream_));
    RETURN_IF_ERROR(Await());
    RETURN_IF_ERROR(Expect(to, values, "elsewhere"));
    return Expect(from, values, "in place");
  }

  // Integers and floats, in memory that other ranks could reach, at once and captured.
  absl::Status Window() {
    constexpr size_t kCount = 5000, kOffset = 512;
    const std::vector<int64_t> values = Pattern(kCount);
    std::vector<float> floats(kCount);
    for (size_t i = 0; i < kCount; ++i) floats[i] = static_cast<float>(values[i]) * 0x1p-40f;
    if (window_.bytes() == 0) {
      ASSIGN_OR_RETURN(window_, AllocCollectiveMemory(device_, kOffset + kCount * sizeof(int64_t) +
                                                                   kCount * sizeof(float)));
    }
    RETURN_IF_ERROR(collective_->OpenWindow(window_, *stream_));
    int64_t* const integers_there = reinterpret_cast<int64_t*>(window_.data() + kOffset);
    float* const floats_there = reinterpret_cast<float*>(integers_there + kCount);
    RETURN_IF_ERROR(
        device_.Copy(integers_there, values.data(), kCount * sizeof(int64_t), *stream_));
    RETURN_IF_ERROR(device_.Copy(floats_there, floats.data(), kCount * sizeof(float), *stream_));
    RETURN_IF_ERROR(device_.Sync(*stream_));
    const auto enqueue = [&]() -> absl::Status {
      RETURN_IF_ERROR(collective_->AllReduceSum(integers_there, kCount, *stream_));
      return collective_->AllReduceSum(floats_there, kCount, *stream_);
    };
    RETURN_IF_ERROR(enqueue());
    RETURN_IF_ERROR(Await());
    RETURN_IF_ERROR(device_.BeginCapture(*stream_));
    const absl::Status enqueued = enqueue();
    absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device_.EndCapture(*stream_);
    RETURN_IF_ERROR(enqueued);
    RETURN_IF_ERROR(graph.status());
    for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(device_.Launch(**graph, *stream_));
    RETURN_IF_ERROR(Await());
    std::vector<int64_t> integers_back(kCount);
    std::vector<float> floats_back(kCount);
    RETURN_IF_ERROR(
        device_.Copy(integers_back.data(), integers_there, kCount * sizeof(int64_t), *stream_));
    RETURN_IF_ERROR(
        device_.Copy(floats_back.data(), floats_there, kCount * sizeof(float), *stream_));
    RETURN_IF_ERROR(device_.Sync(*stream_));
    if (integers_back != values) return Wrong("the integers are wrong");
    return floats_back == floats ? absl::OkStatus() : Wrong("the floats are wrong");
  }

  absl::Status Chain(const DeviceBuffer& words, int64_t steps) {
    const int error = LaunchChain(words.as<uint64_t>(), steps, stream_->native());
    if (error == 0) return absl::OkStatus();
    return Wrong(absl::StrCat("the launch failed: CUDA error ", error));
  }

  // A kernel, a sum and a gather of what it wrote, several launches with one wait.
  absl::Status Captured() {
    constexpr int64_t kSteps = 100;
    constexpr int kLaunches = 7;
    std::vector<int64_t> values = Pattern(513);
    ASSIGN_OR_RETURN(const DeviceBuffer work, Upload(values));
    ASSIGN_OR_RETURN(const DeviceBuffer all, Upload(std::vector<int64_t>(values.size(), -1)));
    const auto enqueue = [&]() -> absl::Status {
      RETURN_IF_ERROR(Chain(work, kSteps));
      RETURN_IF_ERROR(collective_->AllReduceSum(work.as<int64_t>(), values.size(), *stream_));
      return collective_->AllGather(work.data(), all.data(), work.bytes(), *stream_);
    };
    RETURN_IF_ERROR(enqueue());
    RETURN_IF_ERROR(Await());
    RETURN_IF_ERROR(device_.BeginCapture(*stream_));
    const absl::Status enqueued = enqueue();
    absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device_.EndCapture(*stream_);
    RETURN_IF_ERROR(enqueued);
    RETURN_IF_ERROR(graph.status());
    for (int i = 0; i < kLaunches; ++i) RETURN_IF_ERROR(device_.Launch(**graph, *stream_));
    RETURN_IF_ERROR(Await());
    values[0] = static_cast<int64_t>(
        ChainResult(static_cast<uint64_t>(values[0]), kSteps * (kLaunches + 1)));
    RETURN_IF_ERROR(Expect(work, values, "summed"));
    return Expect(all, values, "gathered");
  }

  // Steps that take about so long.
  absl::StatusOr<int64_t> StepsOf(absl::Duration wanted, const DeviceBuffer& word) {
    int64_t steps = 1000;
    for (;;) {
      const absl::Time begin = absl::Now();
      RETURN_IF_ERROR(Chain(word, steps));
      RETURN_IF_ERROR(device_.Sync(*stream_));
      const absl::Duration taken = absl::Now() - begin;
      // Long enough that the launch itself does not count.
      if (taken >= std::min(wanted / 10, absl::Milliseconds(20)))
        return std::max<int64_t>(1, static_cast<int64_t>(absl::FDivDuration(wanted, taken) *
                                                         static_cast<double>(steps)));
      steps *= 4;
    }
  }

  absl::Status AbortDuringKernel() {
    ASSIGN_OR_RETURN(const DeviceBuffer scratch, Upload({1}));
    ASSIGN_OR_RETURN(const int64_t steps, StepsOf(options_.long_kernel, scratch));
    const std::vector<int64_t> values = Pattern(64);
    ASSIGN_OR_RETURN(const DeviceBuffer word, Upload({42}));
    ASSIGN_OR_RETURN(const DeviceBuffer sums, Upload(values));
    RETURN_IF_ERROR(Chain(word, steps));
    RETURN_IF_ERROR(collective_->AllReduceSum(sums.as<int64_t>(), values.size(), *stream_));
    RETURN_IF_ERROR(device_.Record(*event_, *stream_));
    const absl::Time begin = absl::Now();
    AbortTimes times;
    std::thread other([&] {
      absl::SleepFor(options_.long_kernel / 10);
      times.abort = absl::Now() - begin;
      collective_->Abort();
    });
    const absl::Status ended = collective_->Await(*event_);
    times.waited = absl::Now() - begin;
    other.join();
    // Work that was cut off ends without an error of its own; the kernel's is not cut off.
    RETURN_IF_ERROR(device_.Sync(*stream_));
    times.kernel = absl::Now() - begin;
    note_ = AbortText(times);
    if (!IsCollectiveAbort(ended)) return Wrong("the wait says " + ended.ToString());
    RETURN_IF_ERROR(JudgeAbort(times, options_.operation_timeout));
    RETURN_IF_ERROR(
        Expect(word, {static_cast<int64_t>(ChainResult(42, steps))}, "the kernel's own result"));
    // It stays so.
    int64_t one = 1;
    for (const absl::Status& later :
         {collective_->AllReduceSum(sums.as<int64_t>(), values.size(), *stream_),
          collective_->AllGather(sums.data(), sums.data(), sums.bytes(), *stream_),
          collective_->AllReduceSum(absl::MakeSpan(&one, 1)), collective_->Await(*event_)}) {
      if (!IsCollectiveAbort(later)) return Wrong("a later call says " + later.ToString());
    }
    return absl::OkStatus();
  }

  Device& device_;
  const NcclCheckOptions options_;
  const std::function<void(const NcclCheckResult&)> report_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  DeviceBuffer window_;
  std::unique_ptr<DeviceCollective> collective_;  // goes before its window and its stream
  std::vector<NcclCheckResult> results_;
  std::string note_;
};

}  // namespace

std::string AbortText(const AbortTimes& times) {
  return absl::StrCat("abort after ", absl::FormatDuration(times.abort), ", the wait ended after ",
                      absl::FormatDuration(times.waited), ", the kernel after ",
                      absl::FormatDuration(times.kernel));
}

absl::Status JudgeAbort(const AbortTimes& times, absl::Duration deadline) {
  if (times.waited - times.abort < deadline) return absl::OkStatus();
  return Wrong(absl::StrCat(AbortText(times), ": an abort must end it within ",
                            absl::FormatDuration(deadline), " and not wait for the kernel"));
}

std::vector<NcclCheckResult> CheckNccl(Device& device, const NcclCheckOptions& options,
                                       const std::function<void(const NcclCheckResult&)>& report) {
  return Checks(device, options, report).Run();
}

}  // namespace bitshard
