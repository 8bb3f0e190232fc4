// Logits on a device as the sampler finds them (worker/sample/row_source.h): the device looks
// through the rows behind lm_head, a few hundred bytes a row come to the host with the step, and
// whole rows only where a row's parameters or the sampler want them.
//
// Made at bind, used by the step thread (Row by its pool too). Nothing is allocated after that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/device.h"
#include "worker/device/device_bind_context.h"
#include "worker/device/device_op.h"
#include "worker/sample/row_source.h"
#include "worker/sample/sampler.h"

namespace bitshard {

class DeviceLogits final : public RowSource {
 public:
  struct Options {
    Sampler::Options sampler;       // which part of the vocabulary, how many rows
    const float* logits = nullptr;  // on the device, [max_outputs][local_vocab]
    bool scan = true;               // false: every row comes whole
    // Until all that is on the steps' stream is over.
    std::function<absl::Status()> await;
  };
  // Errors of memory as DeviceBindContext::Pinned and Scratch.
  static absl::StatusOr<std::unique_ptr<DeviceLogits>> Create(const Options& options,
                                                              DeviceBindContext& bind);

  // All three enqueue behind the work that makes the logits; what they ask for is there once the
  // stream has passed.
  // What the sampler needs of these rows.
  absl::Status Enqueue(absl::Span<const SampleRow> rows, const DeviceStep& step);
  // The first `count` rows whole.
  absl::Status EnqueueWhole(int64_t count, const DeviceStep& step);
  // Every kernel and copy once, for `count` rows.
  absl::Status EnqueueAll(int64_t count, const DeviceStep& step);

  std::optional<ScannedRow> Scanned(size_t row) const override;
  absl::Status Sum(size_t first, absl::Span<const LogitSumRequest> requests,
                   absl::Span<LogitSums> sums) override;
  absl::Status Fetch(absl::Span<const size_t> rows) override;
  const float* Row(size_t row) const override {
    return host_logits_.as<float>() + row * options_.sampler.local_vocab;
  }

 private:
  explicit DeviceLogits(const Options& options)
      : options_(options), count_(static_cast<int64_t>(Sampler::LocalCount(options.sampler))) {}

  absl::Status Allocate(DeviceBindContext& bind);
  // Of the first rows_, by the requests; whole rows cost a look, too. With `targets` also the
  // logits whose places lie behind the requests.
  absl::Status EnqueueScan(uint32_t most, bool targets);
  absl::Status EnqueueSums(size_t first, size_t rows);
  // Rows marked in whole_ and not here yet; whether there were any.
  absl::StatusOr<bool> EnqueueMarked();
  absl::Status CopyToHost(void* to, const void* from, size_t bytes);

  const Options options_;
  const int64_t count_;  // tokens of the rank that are no padding
  DeviceStep step_;      // of the last Enqueue
  size_t rows_ = 0;
  uint32_t most_ = 0;                  // candidates a row has room for
  bool targets_ = false;               // some row has a target
  std::vector<bool> scanned_;          // by row
  std::vector<bool> whole_, is_here_;  // wanted whole; copied, or on the way

  DeviceBuffer host_logits_;    // [outputs][local_vocab]
  DeviceBuffer host_requests_;  // as requests_
  DeviceBuffer host_found_;     // as found_
  DeviceBuffer host_sums_;      // LogitSumRequest [outputs], LogitSums [outputs]
  // Of `rows_` rows: LogitScanRequest [rows], with targets i32 [rows], where in the logits.
  uint8_t* requests_ = nullptr;
  // LogitScan [rows], keys [rows][most_], with targets f32 [rows].
  uint8_t* found_ = nullptr;
  void* scratch_ = nullptr;
  LogitSumRequest* sum_requests_ = nullptr;
  LogitSums* sums_ = nullptr;
};

}  // namespace bitshard
