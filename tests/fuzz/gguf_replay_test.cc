#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/coordinator/checkpoint/gguf_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/coordinator/shard/made_gguf.h"
#include "tests/fuzz/replay.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(GgufFuzz, NoInputCrashesTheParser) {
  GgufWriter small;
  small.String("general.architecture", "llama")
      .U32("general.alignment", 32)
      .F32("llama.rope.freq_base", 1e4f);
  small.Strings("tokenizer.ggml.tokens", {"a", "<|im_end|>"})
      .Int32s("tokenizer.ggml.token_type", {1, 3});
  small.U32("tokenizer.ggml.eos_token_id", 1)
      .Tensor("output_norm.weight", {8}, 0, std::string(32, 'x'));
  ReplayWithMutations({small.Build()}, 500, 5000);
  ReplayWithMutations({MadeLlamaGguf({})}, 200, 1000);
  // Two ways to scale positions at once, one of them by the key of old files.
  GgufWriter rope;
  rope.String("general.architecture", "llama").F32("llama.rope.scale_linear", 2.0f);
  rope.U32("llama.embedding_length", 64).U32("llama.attention.head_count", 4);
  rope.Tensor("rope_freqs.weight", {8}, 0, std::string(32, 'x'));
  ReplayWithMutations({rope.Build()}, 200, 1000);
  // A real file, mostly its header: metadata, tokens and merges.
  const std::string real = ReadFile(GoldenModel("gguf-Q4_1") + "/tiny-llama-q-Q4_1.gguf");
  ReplayWithMutations({real}, 50, 200);
  ReplayWithMutations({"", "GGUF", std::string("GGUF\3\0\0\0", 8)}, 10, 200);
}

}  // namespace
}  // namespace bitshard
