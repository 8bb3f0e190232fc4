#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/fuzz/replay.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(HfConfigFuzz, NoInputCrashesTheParser) {
  const std::string yarn =
      R"({"architectures":["L"],"num_attention_heads":2,"hidden_size":8,"eos_token_id":[1,2],)"
      R"("rope_scaling":{"type":"yarn","factor":4,"mscale":1,"mscale_all_dim":0.5}})";
  ReplayWithMutations(
      {ReadFile(GoldenModel("tiny-llama") + "/config.json"),
       ReadFile(GoldenModel("tiny-llama-q") + "/config.json"), yarn,
       ReadFile(GoldenModel("ct-int4-embed-lmhead-int8") + "/config.json"),
       R"({"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"W4A16":["re:.*proj",
          "Linear"]},"ignore":["re:(a|b)+$"],"transform_config":{"config_groups":{"g":{"apply":[{"location":
          "weight_input"}]}}}}})",
       R"({"text_config":{"head_dim":null},"architectures":[""]})", std::string(10000, '[')},
      200, 3000);
}

}  // namespace
}  // namespace bitshard
