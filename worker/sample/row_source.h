// Where the sampler finds a call's logits: in the host's memory, or on a device that has looked
// through them already and hands over whole rows when they are asked for.
//
// Rows count from 0 over the call. What one rank asks of its source is its own affair: other ranks
// learn nothing of it, and no collective depends on it. Used by the sampler's thread; Row by its
// pool too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "kernels/registry/logit_scan.h"

namespace bitshard {

// What a device has found out about a row, asked as ScanRequestOf (sampler.h) says.
struct ScannedRow {
  LogitScan scan;
  absl::Span<const uint64_t> keys;  // scan.n_candidates of them, descending
  float target_logit = 0;           // of the row's target, where this rank holds it
};

class RowSource {
 public:
  virtual ~RowSource() = default;

  // None: the row is wanted whole, the sampler looks through it itself.
  virtual std::optional<ScannedRow> Scanned(size_t row) const = 0;
  // Of rows that were scanned: those from `first` on, as many as requests.
  virtual absl::Status Sum(size_t first, absl::Span<const LogitSumRequest> requests,
                           absl::Span<LogitSums> sums) = 0;

  // Brings whole rows to the host; those that are there stay as they are.
  virtual absl::Status Fetch(absl::Span<const size_t> rows) = 0;
  // [local vocabulary]. REQUIRES: fetched.
  virtual const float* Row(size_t row) const = 0;
};

// All rows lie in the host's memory.
class HostRows final : public RowSource {
 public:
  // logits: [rows, local_vocab].
  HostRows(const float* logits, size_t local_vocab) : logits_(logits), local_vocab_(local_vocab) {}

  std::optional<ScannedRow> Scanned(size_t) const override { return std::nullopt; }
  absl::Status Sum(size_t, absl::Span<const LogitSumRequest>, absl::Span<LogitSums>) override {
    return absl::InternalError("sampler: no row of the host's memory was scanned by a device");
  }
  absl::Status Fetch(absl::Span<const size_t>) override { return absl::OkStatus(); }
  const float* Row(size_t row) const override { return logits_ + row * local_vocab_; }

 private:
  const float* const logits_;
  const size_t local_vocab_;
};

}  // namespace bitshard
