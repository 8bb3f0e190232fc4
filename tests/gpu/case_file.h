// The results of kernel_cases.h in a file, and what lies between two of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tests/gpu/kernel_cases.h"

namespace bitshard {

absl::Status WriteCases(const std::string& path, absl::Span<const CaseOutput> outputs);
// DATA_LOSS for a file of another make, or one that ends too early.
absl::StatusOr<std::vector<CaseOutput>> ReadCases(const std::string& path);

struct CaseDifference {
  std::string launch;
  uint64_t values = 0;
  uint64_t equal = 0;  // with the same bits
  // Of numbers: |a - b| over all of them by |b|, and the largest |a - b| by the root of the mean
  // square of b. Infinity when one is not finite and the other is.
  double norm_error = 0, largest = 0;
  double reference_error = -1, reference_bound = 0;  // as in CaseOutput
  std::string failure;                               // "" when it passed
};

// A launch fails that could not be launched, whose bytes differ, or whose numbers are further from
// the stored ones, or from the reference, than kGrossError: what a misread layout does is of the
// size of the numbers themselves, what rounding does far below it. How far rounding goes on a
// device is what the table is for.
inline constexpr double kGrossError = 1e-3;

// `stored` holds at least the launches of `ours`, by name.
std::vector<CaseDifference> CompareCases(absl::Span<const CaseOutput> ours,
                                         absl::Span<const CaseOutput> stored);

// "launch<tab>values<tab>equal share<tab>norm
// error<tab>largest<tab>reference<tab>bound<tab>failure"
std::string CaseHead();
std::string CaseText(const CaseDifference& difference);

}  // namespace bitshard
