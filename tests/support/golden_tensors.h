// The tensors of a golden .safetensors file, for tests. Trusts the file: it is ours. The product's
// reader, which trusts nothing, is coordinator/checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bitshard {

struct GoldenTensors {
  std::map<std::string, std::vector<float>> f32;
  std::map<std::string, std::vector<int32_t>> i32;
};

absl::StatusOr<GoldenTensors> ReadGoldenTensors(const std::string& path);

// ||a - b|| / ||b||, in double. REQUIRES: equal sizes.
double RelativeL2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace bitshard
