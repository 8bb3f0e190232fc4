#include "worker/device/device_logits.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"

namespace bitshard {

absl::StatusOr<std::unique_ptr<DeviceLogits>> DeviceLogits::Create(const Options& options,
                                                                   DeviceBindContext& bind) {
  auto rows = std::unique_ptr<DeviceLogits>(new DeviceLogits(options));
  RETURN_IF_ERROR(rows->Allocate(bind));
  return rows;
}

absl::Status DeviceLogits::Allocate(DeviceBindContext& bind) {
  const uint64_t outputs = static_cast<uint64_t>(options_.sampler.max_outputs);
  scanned_.resize(outputs);
  whole_.resize(outputs);
  is_here_.resize(outputs);
  CHECK(outputs <= uint64_t{kMaxScanRows});  // step_numerics.cc allows fewer slots
  const uint64_t vocab = options_.sampler.local_vocab;
  if (vocab == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(host_logits_, bind.Pinned(CheckedProduct({outputs, vocab, sizeof(float)})));
  if (count_ == 0) return absl::OkStatus();
  const auto scratch = [&bind](uint64_t bytes) { return bind.Scratch(bytes); };

  const uint64_t request_bytes = outputs * (sizeof(LogitScanRequest) + sizeof(int32_t));
  const uint64_t found_bytes =
      outputs * (sizeof(LogitScan) + kMaxScanCandidates * sizeof(uint64_t) + sizeof(float));
  ASSIGN_OR_RETURN(host_requests_, bind.Pinned(request_bytes));
  ASSIGN_OR_RETURN(host_found_, bind.Pinned(found_bytes));
  ASSIGN_OR_RETURN(requests_, scratch(request_bytes));
  ASSIGN_OR_RETURN(found_, scratch(found_bytes));
  ASSIGN_OR_RETURN(scratch_,
                   scratch(bind.kernels().ScanScratchBytes(static_cast<int64_t>(outputs), count_)));

  ASSIGN_OR_RETURN(host_sums_,
                   bind.Pinned(outputs * (sizeof(LogitSumRequest) + sizeof(LogitSums))));
  ASSIGN_OR_RETURN(uint8_t* const sum_requests, scratch(outputs * sizeof(LogitSumRequest)));
  sum_requests_ = reinterpret_cast<LogitSumRequest*>(sum_requests);
  ASSIGN_OR_RETURN(uint8_t* const sums, scratch(outputs * sizeof(LogitSums)));
  sums_ = reinterpret_cast<LogitSums*>(sums);
  return absl::OkStatus();
}

absl::Status DeviceLogits::Enqueue(absl::Span<const SampleRow> rows, const DeviceStep& step) {
  step_ = step;
  rows_ = rows.size();
  std::fill(is_here_.begin(), is_here_.end(), false);
  if (count_ == 0 || rows.empty()) return absl::OkStatus();
  uint32_t most = 0;
  bool scans = false, targets = false;
  int32_t* const index = reinterpret_cast<int32_t*>(host_requests_.as<LogitScanRequest>() + rows_);
  for (size_t i = 0; i < rows.size(); ++i) {
    scanned_[i] = options_.scan && !Sampler::NeedsWholeRow(rows[i]);
    whole_[i] = !scanned_[i];
    LogitScanRequest& request = host_requests_.as<LogitScanRequest>()[i];
    request = {};
    index[i] = 0;
    if (!scanned_[i]) continue;
    scans = true;
    if (const auto target = Sampler::LocalTarget(rows[i], options_.sampler); target.has_value()) {
      targets = true;
      const size_t at = i * options_.sampler.local_vocab + *target;
      CHECK(at <= size_t{std::numeric_limits<int32_t>::max()});  // kScoreTokens rows at a time
      index[i] = static_cast<int32_t>(at);
    }
    request = Sampler::ScanRequestOf(rows[i], options_.sampler.vocab_size);
    most = std::max(most, request.candidates);
  }
  if (scans) RETURN_IF_ERROR(EnqueueScan(most, targets));
  return EnqueueMarked().status();
}

absl::Status DeviceLogits::EnqueueWhole(int64_t count, const DeviceStep& step) {
  if (options_.sampler.local_vocab == 0) return absl::OkStatus();
  std::fill_n(is_here_.begin(), count, true);
  return step.device->Copy(
      host_logits_.data(), options_.logits,
      static_cast<size_t>(count) * options_.sampler.local_vocab * sizeof(float), *step.stream);
}

absl::Status DeviceLogits::EnqueueAll(int64_t count, const DeviceStep& step) {
  step_ = step;
  rows_ = static_cast<size_t>(count);
  if (count_ == 0 || count == 0) return absl::OkStatus();
  for (size_t i = 0; i < rows_; ++i) {
    LogitScanRequest& request = host_requests_.as<LogitScanRequest>()[i];
    request = {};
    request.candidates = kMaxScanCandidates;
    request.draws = 1;
    LogitSumRequest& sums = host_sums_.as<LogitSumRequest>()[i];
    sums = {};
    sums.raw = sums.mass = 1;
  }
  std::fill_n(reinterpret_cast<int32_t*>(host_requests_.as<LogitScanRequest>() + rows_), rows_, 0);
  RETURN_IF_ERROR(EnqueueScan(kMaxScanCandidates, /*targets=*/true));
  RETURN_IF_ERROR(EnqueueSums(0, rows_));
  return EnqueueWhole(count, step);
}

absl::Status DeviceLogits::EnqueueScan(uint32_t most, bool targets) {
  most_ = most;
  targets_ = targets;
  const size_t request_bytes = rows_ * sizeof(LogitScanRequest);
  const size_t index_bytes = targets ? rows_ * sizeof(int32_t) : 0;
  RETURN_IF_ERROR(step_.device->Copy(requests_, host_requests_.data(), request_bytes + index_bytes,
                                     *step_.stream));
  DeviceScan scan;
  scan.logits = options_.logits;
  scan.stride = options_.sampler.local_vocab;
  scan.m = static_cast<int64_t>(rows_);
  scan.begin = options_.sampler.vocab_begin;
  scan.count = count_;
  scan.requests = reinterpret_cast<const LogitScanRequest*>(requests_);
  scan.most = most;
  scan.scratch = scratch_;
  scan.scans = reinterpret_cast<LogitScan*>(found_);
  scan.keys = reinterpret_cast<uint64_t*>(found_ + rows_ * sizeof(LogitScan));
  RETURN_IF_ERROR(step_.kernels->Scan(scan, *step_.stream));
  const size_t found_bytes = rows_ * (sizeof(LogitScan) + most * sizeof(uint64_t));
  if (!targets) return CopyToHost(host_found_.data(), found_, found_bytes);
  // Numbers of the logits are rows of one column.
  RETURN_IF_ERROR(step_.kernels->GatherRows(
      options_.logits, reinterpret_cast<const int32_t*>(requests_ + request_bytes),
      static_cast<int64_t>(rows_), /*width=*/1, reinterpret_cast<float*>(found_ + found_bytes),
      *step_.stream));
  return CopyToHost(host_found_.data(), found_, found_bytes + rows_ * sizeof(float));
}

std::optional<ScannedRow> DeviceLogits::Scanned(size_t row) const {
  if (!scanned_[row]) return std::nullopt;
  const LogitScan* const scans = host_found_.as<LogitScan>();
  const uint64_t* const keys = reinterpret_cast<const uint64_t*>(scans + rows_);
  const float* const targets = reinterpret_cast<const float*>(keys + rows_ * most_);
  return ScannedRow{scans[row], absl::MakeConstSpan(keys + row * most_, scans[row].n_candidates),
                    targets_ ? targets[row] : 0.0f};
}

absl::Status DeviceLogits::EnqueueSums(size_t first, size_t rows) {
  const LogitSumRequest* const requests = host_sums_.as<LogitSumRequest>();
  RETURN_IF_ERROR(
      step_.device->Copy(sum_requests_, requests, rows * sizeof(LogitSumRequest), *step_.stream));
  RETURN_IF_ERROR(step_.device->Fill(sums_, 0, rows * sizeof(LogitSums), *step_.stream));
  DeviceMassSums sum;
  sum.logits = options_.logits + first * options_.sampler.local_vocab;
  sum.stride = options_.sampler.local_vocab;
  sum.m = static_cast<int64_t>(rows);
  sum.count = count_;
  sum.requests = sum_requests_;
  sum.sums = sums_;
  RETURN_IF_ERROR(step_.kernels->SumMasses(sum, *step_.stream));
  return CopyToHost(host_sums_.data() + options_.sampler.max_outputs * sizeof(LogitSumRequest),
                    sums_, rows * sizeof(LogitSums));
}

absl::Status DeviceLogits::Sum(size_t first, absl::Span<const LogitSumRequest> requests,
                               absl::Span<LogitSums> sums) {
  CHECK_LE(first + requests.size(), rows_);
  std::copy(requests.begin(), requests.end(), host_sums_.as<LogitSumRequest>());
  RETURN_IF_ERROR(EnqueueSums(first, requests.size()));
  RETURN_IF_ERROR(options_.await());
  const LogitSums* const found = reinterpret_cast<const LogitSums*>(
      host_sums_.as<LogitSumRequest>() + options_.sampler.max_outputs);
  std::copy_n(found, sums.size(), sums.begin());
  return absl::OkStatus();
}

absl::Status DeviceLogits::Fetch(absl::Span<const size_t> rows) {
  if (count_ == 0) return absl::OkStatus();
  for (const size_t row : rows) whole_[row] = true;
  ASSIGN_OR_RETURN(const bool any, EnqueueMarked());
  return any ? options_.await() : absl::OkStatus();
}

// Neighbours in one copy.
absl::StatusOr<bool> DeviceLogits::EnqueueMarked() {
  const size_t vocab = options_.sampler.local_vocab;
  const auto wanted = [this](size_t row) { return row < rows_ && whole_[row] && !is_here_[row]; };
  bool any = false;
  for (size_t first = 0; first < rows_; ++first) {
    size_t end = first;
    for (; wanted(end); ++end) is_here_[end] = true;
    if (end == first) continue;
    RETURN_IF_ERROR(CopyToHost(host_logits_.as<float>() + first * vocab,
                               options_.logits + first * vocab,
                               (end - first) * vocab * sizeof(float)));
    any = true;
    first = end;  // not wanted
  }
  return any;
}

absl::Status DeviceLogits::CopyToHost(void* to, const void* from, size_t bytes) {
  return step_.device->Copy(to, from, bytes, *step_.stream);
}

}  // namespace bitshard
