// Random bytes of any block format whose scales are finite, as a writer's would be.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/formats/format.h"

namespace bitshard {

// Bytes of a block that end a float whose exponent must not be all ones: the second of an f16 or
// bf16, the fourth of an f32.
inline const std::vector<uint64_t>& TopBytesOfFloats(const std::string& format) {
  static const auto* const kBytes = new std::map<std::string, std::vector<uint64_t>>{
      {"f32", {3}},     {"f16", {1}},     {"bf16", {1}},  {"q4_0", {1}},      {"q4_1", {1, 3}},
      {"q5_0", {1}},    {"q5_1", {1, 3}}, {"q8_0", {1}},  {"q2_k", {81, 83}}, {"q3_k", {109}},
      {"q4_k", {1, 3}}, {"q5_k", {1, 3}}, {"q6_k", {209}}};
  const auto found = kBytes->find(format);
  CHECK(found != kBytes->end()) << format << ": say where its floats are";
  return found->second;
}

inline std::vector<uint8_t> RandomBlocks(const BlockFormat& format, uint64_t rows, uint64_t cols,
                                         uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(rows * *format.RowBytes(cols));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (uint64_t block = 0; block < bytes.size(); block += format.block_bytes()) {
    for (const uint64_t at : TopBytesOfFloats(format.name()))
      bytes[block + at] &= 0xbf;  // the top bit of the exponent
  }
  return bytes;
}

}  // namespace bitshard
