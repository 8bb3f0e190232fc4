// The dequantized weights of real compressed-tensors checkpoints, against the SHA-256 sums of what
// the library itself makes of them. It multiplies in the type of the scale, so that its weights are
// ours rounded to bf16.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/checkpoint/sha256.h"
#include "kernels/base/float_types.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/support/stored_weight.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

class CompressedTensorsGolden : public testing::TestWithParam<const char*> {};

TEST_P(CompressedTensorsGolden, DecodesToTheLibrarysBits) {
  const std::string folder = GoldenModel(GetParam());
  const auto golden = nlohmann::json::parse(ReadFile(folder + "/golden.json"));
  const auto checkpoint = OpenCheckpoint(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string file = ReadFile(checkpoint->index.files()[0].path);
  size_t packed = 0;
  for (const auto& [name, expected] : golden["weights"].items()) {
    const TensorInfo* const tensor = checkpoint->index.Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    packed += tensor->parts.size() > 1;
    ASSERT_EQ(expected["tool_dtype"].get<std::string>(), "bfloat16") << name;
    std::vector<float> values = DecodeStored(*tensor, {file});
    for (float& value : values) value = Bf16ToF32(F32ToBf16(value));
    Sha256 sha;
    sha.Add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    EXPECT_EQ(sha.HexDigest(), expected["tool_f32_sha256"].get<std::string>())
        << name << " in " << tensor->format;
  }
  EXPECT_EQ(golden["weights"].size(), checkpoint->index.tensors().size());
  EXPECT_GE(packed, 14);  // the linear layers
}

INSTANTIATE_TEST_SUITE_P(Folders, CompressedTensorsGolden,
                         testing::Values("ct-int3-g32-g128", "ct-int4-embed-lmhead-int8",
                                         "ct-int4-g32-asym", "ct-int5-g32-g128", "ct-int6-channel"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace bitshard
