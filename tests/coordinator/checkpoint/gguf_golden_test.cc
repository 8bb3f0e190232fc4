// The dequantized weights of real GGUF files, against the SHA-256 sums of what the gguf package
// makes of them.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/checkpoint/sha256.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/support/stored_weight.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

// The goldens are in Hugging Face order: row 2j + s of a head in the file is row s * head_dim / 2 +
// j there.
std::vector<float> UnpermuteHeads(const std::vector<float>& in, uint64_t cols, uint64_t head_dim) {
  std::vector<float> out(in.size());
  for (uint64_t row = 0; row < in.size() / cols; ++row) {
    const uint64_t head = row / head_dim, j = row % head_dim / 2, s = row % 2;
    const uint64_t to = head * head_dim + s * head_dim / 2 + j;
    std::memcpy(out.data() + to * cols, in.data() + row * cols, cols * sizeof(float));
  }
  return out;
}

class GgufGolden : public testing::TestWithParam<const char*> {};

TEST_P(GgufGolden, DecodesToTheReferencesBits) {
  const std::string folder = GoldenModel(std::string("gguf-") + GetParam());
  const auto golden = nlohmann::json::parse(ReadFile(folder + "/golden.json"));
  const auto checkpoint = OpenCheckpoint(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string file = ReadFile(checkpoint->index.files()[0].path);
  size_t checked = 0;
  for (const auto& [name, expected] : golden["weights"].items()) {
    const TensorInfo* const tensor = checkpoint->index.Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::vector<float> values = DecodeStored(*tensor, {file});
    if (absl::EndsWith(name, "q_proj.weight") || absl::EndsWith(name, "k_proj.weight")) {
      values = UnpermuteHeads(values, tensor->cols, checkpoint->config.head_dim);
    }
    Sha256 sha;
    sha.Add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    EXPECT_EQ(sha.HexDigest(), expected["tool_f32_sha256"].get<std::string>())
        << name << " in " << tensor->format;
    ++checked;
  }
  EXPECT_EQ(checked, checkpoint->index.tensors().size());
}

INSTANTIATE_TEST_SUITE_P(Files, GgufGolden,
                         testing::Values("F16", "Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K",
                                         "Q8_0"));

}  // namespace
}  // namespace bitshard
