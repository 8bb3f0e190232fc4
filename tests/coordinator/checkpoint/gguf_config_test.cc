// What GGUF metadata say about a model and its tokenizer, and what they must not say.
#include "coordinator/checkpoint/gguf_config.h"

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/gguf_names.h"

namespace bitshard {
namespace {

class GgufConfig : public testing::Test {
 protected:
  GgufConfig() {
    Set("general.architecture", std::string("llama"));
    Set("llama.embedding_length", uint64_t{64});
    Set("llama.attention.head_count", uint64_t{4});
  }
  void Set(const std::string& key, GgufValue value) {
    EXPECT_TRUE(metadata_.Add(key, std::move(value)).ok()) << key;
  }
  void SetStrings(const std::string& key, std::vector<std::string> strings) {
    const uint64_t count = strings.size();
    Set(key, GgufArray{.type = GgufValueType::kString,
                       .count = count,
                       .bytes = "",
                       .strings = std::move(strings)});
  }
  void AddTensor(const std::string& name) {
    if (index_.files().empty()) index_.AddFile({});
    EXPECT_TRUE(
        index_.Add({.name = name, .format = "f32", .shape = {8}, .parts = {{.source_name = name}}})
            .ok());
  }
  void ExpectError(absl::StatusCode code, const std::string& part) {
    const absl::Status status = GgufModelConfig(metadata_, index_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
  }

  GgufMetadata metadata_{"f"};
  TensorIndex index_;
};

TEST_F(GgufConfig, MissingKeysHaveTheirDefaults) {
  const auto config = GgufModelConfig(metadata_, index_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->rope.theta, 10000);
  EXPECT_EQ(config->rope.rotary_dim, 16);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(config->rope.scaling));
}

TEST_F(GgufConfig, PerLayerListsMustAgree) {
  Set("llama.attention.head_count_kv", GgufArray{.type = GgufValueType::kU16,
                                                 .count = 2,
                                                 .bytes = std::string("\2\0\2\0", 4),
                                                 .strings = {}});
  EXPECT_EQ(GgufModelConfig(metadata_, index_)->kv_heads, 2);
  Set("llama.feed_forward_length",
      GgufArray{.type = GgufValueType::kU8, .count = 2, .bytes = "\2\3", .strings = {}});
  ExpectError(absl::StatusCode::kUnimplemented,
              "'llama.feed_forward_length' differs between layers");
}

TEST_F(GgufConfig, RopeScalings) {
  Set("llama.rope.scaling.type", std::string("yarn"));
  Set("llama.rope.scaling.factor", 4.0);
  Set("llama.rope.scaling.original_context_length", uint64_t{512});
  const auto config = GgufModelConfig(metadata_, index_);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto& yarn = std::get<RopeConfig::Yarn>(config->rope.scaling);
  EXPECT_EQ(yarn.original_context, 512);
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
}

TEST_F(GgufConfig, RopeDivisorsAreATensor) {
  AddTensor(kGgufRopeDivisors);
  EXPECT_EQ(std::get<RopeConfig::Divisors>(GgufModelConfig(metadata_, index_)->rope.scaling).tensor,
            "rope_freqs.weight");
  Set("llama.rope.scaling.type", std::string("linear"));
  Set("llama.rope.scaling.factor", 2.0);
  ExpectError(absl::StatusCode::kUnimplemented, "together with rope scaling 'linear'");
}

TEST_F(GgufConfig, RopeDivisorsBesideTheOldLinearKeyAreRefused) {
  AddTensor(kGgufRopeDivisors);
  Set("llama.rope.scale_linear", 2.0);
  ExpectError(absl::StatusCode::kUnimplemented, "together with rope scaling 'linear'");
}

TEST_F(GgufConfig, UnknownRopeScalingIsRefusedWithTheKnownOnes) {
  Set("llama.rope.scaling.type", std::string("longrope"));
  ExpectError(absl::StatusCode::kUnimplemented,
              "'longrope' is not supported; supported are none, linear, yarn");
}

TEST_F(GgufConfig, ScalingNeedsAFactor) {
  Set("llama.rope.scaling.type", std::string("linear"));
  ExpectError(absl::StatusCode::kInvalidArgument, "without a factor");
}

TEST_F(GgufConfig, SizesAreBounded) {
  Set("llama.block_count", uint64_t{1025});
  ExpectError(absl::StatusCode::kInvalidArgument,
              "'llama.block_count' is not a whole number from 0 to 1024");
}

TEST_F(GgufConfig, NegativeSizesAreRefused) {
  Set("llama.context_length", int64_t{-1});
  ExpectError(absl::StatusCode::kInvalidArgument, "'llama.context_length' is not");
}

TEST_F(GgufConfig, ValueHeadsMustBeLikeKeyHeads) {
  Set("llama.attention.key_length", uint64_t{32});
  Set("llama.attention.value_length", uint64_t{16});
  ExpectError(absl::StatusCode::kUnimplemented, "key heads of 32 and value heads of 16");
}

TEST_F(GgufConfig, OddRotationsAreRefused) {
  Set("llama.rope.dimension_count", uint64_t{7});
  ExpectError(absl::StatusCode::kInvalidArgument, "cannot rotate 7 of 16");
}

TEST_F(GgufConfig, TheVocabularyMustHoldTheTokensAndTheirIds) {
  SetStrings("tokenizer.ggml.tokens", {"a", "b", "c"});
  EXPECT_EQ(GgufModelConfig(metadata_, index_)->vocab_size, 3);
  Set("tokenizer.ggml.eos_token_id", uint64_t{3});
  ExpectError(absl::StatusCode::kInvalidArgument,
              "'tokenizer.ggml.eos_token_id' is 3 but there are 3 tokens");
  EXPECT_FALSE(ReadGgufVocab(metadata_).ok());
}

TEST_F(GgufConfig, AVocabularyBelowTheTokensIsRefused) {
  SetStrings("tokenizer.ggml.tokens", {"a", "b", "c"});
  Set("llama.vocab_size", uint64_t{2});
  ExpectError(absl::StatusCode::kInvalidArgument, "a vocabulary of 2 cannot hold the 3 tokens");
}

TEST_F(GgufConfig, AnArchitectureIsNeeded) {
  metadata_ = GgufMetadata("f");
  ExpectError(absl::StatusCode::kInvalidArgument, "does not say its general.architecture");
}

TEST_F(GgufConfig, TokenListsOfDifferentLengthsAreRefused) {
  SetStrings("tokenizer.ggml.tokens", {"a", "b", "c"});
  Set("tokenizer.ggml.token_type",
      GgufArray{.type = GgufValueType::kU8, .count = 2, .bytes = "\1\1", .strings = {}});
  const absl::Status status = ReadGgufVocab(metadata_).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "3 tokens but 2 token types")) << status;
}

TEST_F(GgufConfig, EndIdsAreTheNamedOnesAndControlTokensOfKnownNames) {
  GgufVocab vocab;
  vocab.tokens = {"<|im_end|>", "</s>", "x", "<|eot_id|>", "y"};
  vocab.token_types = {3, 1, 1, 3, 1};
  vocab.eos_id = 4;
  vocab.eom_id = 2;
  EXPECT_EQ(GgufEndIds(vocab), (std::vector<int32_t>{0, 2, 3, 4}));
}

}  // namespace
}  // namespace bitshard
