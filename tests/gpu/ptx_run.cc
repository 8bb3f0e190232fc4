#include "tests/gpu/ptx_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/functional/function_ref.h"
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

// One word of a field. True when it is the first one beyond the tolerance.
bool Add(const PtxField& field, uint32_t ours, uint32_t theirs, PtxDifference* d) {
  const double distance = Distance(field, ours, theirs);
  if (ours != theirs) ++d->unequal;
  if (std::isfinite(distance)) d->largest = std::max(d->largest, distance);
  if (field.compare != PtxCompare::kExact) {
    const uint64_t ulps = UlpsApart(ours, theirs);
    d->largest_ulps = std::max(d->largest_ulps, ulps);
    d->mean_ulps += static_cast<double>(ulps) / static_cast<double>(d->words);
  }
  return distance > field.tolerance && d->beyond++ == 0;
}

// What comes out for random words.
absl::StatusOr<std::vector<uint32_t>> Run(
    Device& device, size_t in_words, size_t out_words,
    absl::FunctionRef<int(const uint32_t* in, uint32_t* out, void* stream)> launch) {
  std::mt19937 rng(20261130);
  std::vector<uint32_t> in(in_words), out(out_words);
  for (uint32_t& word : in) word = static_cast<uint32_t>(rng());
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  ASSIGN_OR_RETURN(DeviceBuffer in_there, device.Alloc(in.size() * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(DeviceBuffer out_there, device.Alloc(out.size() * sizeof(uint32_t)));
  RETURN_IF_ERROR(device.Copy(in_there.data(), in.data(), in_there.bytes(), *stream));
  const int error = launch(in_there.as<uint32_t>(), out_there.as<uint32_t>(), stream->native());
  if (error != 0) return absl::InternalError(absl::StrCat("the launch failed: CUDA error ", error));
  RETURN_IF_ERROR(device.Copy(out.data(), out_there.data(), out_there.bytes(), *stream));
  RETURN_IF_ERROR(device.Sync(*stream));
  return out;
}

}  // namespace

uint32_t UlpsApart(uint32_t a_bits, uint32_t b_bits) {
  if (std::isnan(FloatOf(a_bits)) || std::isnan(FloatOf(b_bits)))
    return std::isnan(FloatOf(a_bits)) == std::isnan(FloatOf(b_bits)) ? 0 : UINT32_MAX;
  // From the smallest to the largest float, both zeros in one place.
  const auto place = [](uint32_t bits) {
    const int64_t size = bits & 0x7fffffffu;
    return bits >> 31 != 0 ? -size : size;
  };
  return static_cast<uint32_t>(std::abs(place(a_bits) - place(b_bits)));
}

size_t PtxWords() { return static_cast<size_t>(kLanes * PtxOutputWords()); }
size_t WgmmaPtxWords() { return size_t{kWgmmaVectorBlocks} * kWgmmaVectorOutputWords; }

absl::StatusOr<std::vector<uint32_t>> RunPtxVectors(Device& device) {
  ASSIGN_OR_RETURN(std::vector<uint32_t> words,
                   Run(device, static_cast<size_t>(kLanes * kPtxInputWords), PtxWords(),
                       [](const uint32_t* in, uint32_t* out, void* stream) {
                         return LaunchPtxVectors(in, out, kPtxWarps, stream);
                       }));
  if (device.facts().compute_capability != 90) return words;
  ASSIGN_OR_RETURN(const std::vector<uint32_t> warpgroups,
                   Run(device, size_t{kWgmmaVectorBlocks} * kWgmmaVectorInputWords, WgmmaPtxWords(),
                       [](const uint32_t* in, uint32_t* out, void* stream) {
                         return LaunchWgmmaVectors(in, out, kWgmmaVectorBlocks, stream);
                       }));
  words.insert(words.end(), warpgroups.begin(), warpgroups.end());
  return words;
}

std::vector<PtxDifference> ComparePtxVectors(absl::Span<const uint32_t> ours,
                                             absl::Span<const uint32_t> theirs) {
  for (const size_t size : {ours.size(), theirs.size()})
    CHECK(size == PtxWords() || size == PtxWords() + WgmmaPtxWords()) << size << " words";
  std::vector<PtxDifference> differences;
  int64_t begin = 0;
  for (const PtxField& field : kPtxFields) {
    PtxDifference d;
    d.field = std::string(field.name);
    d.words = kLanes * field.words;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t word = begin; word < begin + field.words; ++word) {
        const int64_t at = lane * PtxOutputWords() + word;
        if (Add(field, ours[at], theirs[at], &d)) {
          d.first = absl::StrFormat("lane %d of warp %d, word %d: %#010x and %#010x", lane % 32,
                                    lane / 32, word - begin, ours[at], theirs[at]);
        }
      }
    }
    differences.push_back(d);
    begin += field.words;
  }
  if (std::min(ours.size(), theirs.size()) == PtxWords()) return differences;
  PtxDifference d;
  d.field = std::string(kWgmmaField.name);
  d.words = static_cast<int64_t>(WgmmaPtxWords());
  for (size_t at = PtxWords(); at < ours.size(); ++at) {
    if (Add(kWgmmaField, ours[at], theirs[at], &d)) {
      d.first =
          absl::StrFormat("word %d: %#010x and %#010x", at - PtxWords(), ours[at], theirs[at]);
    }
  }
  differences.push_back(d);
  return differences;
}

std::string PtxHead() {
  return "field\twords\tunequal\tbeyond\tlargest\tlargest ulps\tmean ulps\tfirst beyond";
}

std::string PtxText(const PtxDifference& d) {
  return absl::StrFormat("%s\t%d\t%d\t%d\t%.3g\t%d\t%.3g\t%s", d.field, d.words, d.unequal,
                         d.beyond, d.largest, d.largest_ulps, d.mean_ulps, d.first);
}

absl::Status WritePtxFile(const std::string& path, absl::Span<const uint32_t> words) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(words.data()),
             static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
  if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ReadPtxFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const auto bytes = static_cast<size_t>(file.tellg());
  if (bytes != 4 * PtxWords() && bytes != 4 * (PtxWords() + WgmmaPtxWords())) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", bytes, " bytes: it is of another version of ptx_vectors"));
  }
  std::vector<uint32_t> words(bytes / 4);
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(bytes)))
    return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return words;
}

}  // namespace bitshard
