#include "tests/gpu/ptx_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tests/gpu/ptx_vectors.h"

namespace bitshard {
namespace {

constexpr int64_t kLanes = int64_t{kPtxWarps} * 32;

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// How far apart two words are as the field is compared; infinity for exact ones.
double Distance(const PtxField& field, uint32_t a, uint32_t b) {
  if (a == b) return 0;
  if (field.compare == PtxCompare::kExact) return INFINITY;
  const double x = FloatOf(a), y = FloatOf(b), apart = std::abs(x - y);
  if (std::isnan(apart)) return INFINITY;
  return field.compare == PtxCompare::kAbsolute ? apart
                                                : apart / std::max(std::abs(x), std::abs(y));
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> RunPtxVectors(Device& device) {
  std::mt19937 rng(20261130);
  std::vector<uint32_t> in(kLanes * kPtxInputWords);
  for (uint32_t& word : in) word = static_cast<uint32_t>(rng());
  std::vector<uint32_t> out(kLanes * PtxOutputWords());
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  ASSIGN_OR_RETURN(DeviceBuffer in_there, device.Alloc(in.size() * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(DeviceBuffer out_there, device.Alloc(out.size() * sizeof(uint32_t)));
  RETURN_IF_ERROR(device.Copy(in_there.data(), in.data(), in_there.bytes(), *stream));
  const int error = LaunchPtxVectors(in_there.as<uint32_t>(), out_there.as<uint32_t>(), kPtxWarps,
                                     stream->native());
  if (error != 0) return absl::InternalError(absl::StrCat("the launch failed: CUDA error ", error));
  RETURN_IF_ERROR(device.Copy(out.data(), out_there.data(), out_there.bytes(), *stream));
  RETURN_IF_ERROR(device.Sync(*stream));
  return out;
}

std::vector<PtxDifference> ComparePtxVectors(absl::Span<const uint32_t> ours,
                                             absl::Span<const uint32_t> theirs) {
  CHECK(ours.size() == theirs.size() && ours.size() == size_t{kLanes * PtxOutputWords()})
      << ours.size() << " and " << theirs.size() << " words";
  std::vector<PtxDifference> differences;
  int64_t begin = 0;
  for (const PtxField& field : kPtxFields) {
    PtxDifference d{.field = std::string(field.name), .words = kLanes * field.words};
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t word = begin; word < begin + field.words; ++word) {
        const int64_t at = lane * PtxOutputWords() + word;
        const double distance = Distance(field, ours[at], theirs[at]);
        if (ours[at] != theirs[at]) ++d.unequal;
        if (std::isfinite(distance)) d.largest = std::max(d.largest, distance);
        if (distance <= field.tolerance) continue;
        if (d.beyond++ == 0) {
          d.first = absl::StrFormat("lane %d of warp %d, word %d: %#010x and %#010x", lane % 32,
                                    lane / 32, word - begin, ours[at], theirs[at]);
        }
      }
    }
    differences.push_back(d);
    begin += field.words;
  }
  return differences;
}

}  // namespace bitshard
