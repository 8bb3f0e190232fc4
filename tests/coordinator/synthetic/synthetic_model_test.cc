// How a synthetic model is spelled, and what is wrong with what is not.
#include "coordinator/synthetic/synthetic_model.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(SyntheticModel, WhatIsSpelledIsRead) {
  SyntheticModel model;
  model.config = "models/a:b,c/config.json";
  EXPECT_EQ(Spelled(model), "synthetic::models/a:b,c/config.json");
  model.bits = 5;
  model.group = 64;
  model.symmetric = false;
  model.shard = 3;
  model.shards = 8;
  model.seed = 18446744073709551615u;
  EXPECT_EQ(Spelled(model),
            "synthetic:bits=5,group=64,asym,shard=3/8,seed=18446744073709551615:"
            "models/a:b,c/config.json");
  ASSERT_TRUE(IsSyntheticModel(Spelled(model)));
  const auto read = ParseSyntheticModel(Spelled(model));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config, model.config);
  EXPECT_EQ(read->bits, 5);
  EXPECT_EQ(read->group, 64u);
  EXPECT_FALSE(read->symmetric);
  EXPECT_EQ(read->shard, 3u);
  EXPECT_EQ(read->shards, 8u);
  EXPECT_EQ(read->seed, model.seed);
}

TEST(SyntheticModel, AFormatMayBeNamed) {
  SyntheticModel model;
  model.config = "llama-3.1-8b";
  model.format = "ct_int4 group=32 scale=f16 asym";
  EXPECT_EQ(Spelled(model), "synthetic:format=ct_int4 group=32 scale=f16 asym:llama-3.1-8b");
  const auto read = ParseSyntheticModel(Spelled(model));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->format, model.format);
  EXPECT_EQ(read->config, model.config);
  EXPECT_EQ(read->Describe(), "synthetic weights in format ct_int4 group=32 scale=f16 asym");
  model.format = "q4_k,bits=4";
  EXPECT_FALSE(CheckSyntheticModel(model).ok());
}

TEST(SyntheticModel, OptionsMayBeMissing) {
  const auto read = ParseSyntheticModel("synthetic::llama-3.1-8b");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config, "llama-3.1-8b");
  EXPECT_EQ(read->bits, 0);
  EXPECT_EQ(read->group, 128u);
  EXPECT_TRUE(read->symmetric);
  EXPECT_EQ(read->shards, 1u);
  EXPECT_EQ(read->seed, 1u);
  EXPECT_FALSE(IsSyntheticModel("models/synthetic:a"));
}

TEST(SyntheticModel, WhatCannotBeReadIsNamed) {
  for (const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{
           {"synthetic:llama-3.1-8b", "synthetic::CONFIG"},
           {"synthetic:bits=4:", "no config"},
           {"synthetic:bits=9:a", "bits=9"},
           {"synthetic:bits=1:a", "bits=1"},
           {"synthetic:bits=four:a", "bits=four"},
           {"synthetic:bits=4,group=-1:a", "group=-1"},
           {"synthetic:bits=4,group=99999999:a", "group=99999999"},
           {"synthetic:asym:a", "zero points"},
           {"synthetic:group=32:a", "group=32 without bits"},
           {"synthetic:bits=16,group=0:a", "group=0 without bits"},
           {"synthetic:bits=16,asym:a", "zero points"},
           {"synthetic:shard=8/8:a", "shard=8/8"},
           {"synthetic:shard=0/0:a", "shard=0/0"},
           {"synthetic:shard=0/2000:a", "shard=0/2000"},
           {"synthetic:shard=3:a", "I of N"},
           {"synthetic:seed=-1:a", "seed=-1"},
           {"synthetic:format=:a", "q4_k"},
           {"synthetic:format=q4_k,bits=4:a", "format=q4_k beside"},
           {"synthetic:format=q4_k,group=32:a", "format=q4_k beside"},
           {"synthetic:format=q4_k,asym:a", "format=q4_k beside"},
           {"synthetic:width=4:a", "width=4"}}) {
    const absl::Status status = ParseSyntheticModel(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(word), std::string::npos) << text << ": " << status;
  }
}

TEST(SyntheticModel, OptionsAreNamedAsTheyWereGiven) {
  SyntheticModel model;
  model.config = "a";
  const auto said = [&model] {
    return std::string(CheckSyntheticModel(model, "--synthetic-").message());
  };
  model.bits = 9;
  EXPECT_EQ(said(), "--synthetic-bits=9; 2 to 8, or 16 for unquantized ones");
  model.bits = 0;
  model.group = 100;
  EXPECT_EQ(said().find("--synthetic-group=100 without --synthetic-bits=2 to 8"), 0u) << said();
  const absl::Status shard = ParseShard("3", model, "--synthetic-");
  EXPECT_EQ(shard.message().find("--synthetic-shard=3: takes"), 0u) << shard;
}

TEST(SyntheticModel, SaysThatAShareIsOne) {
  SyntheticModel model;
  model.bits = 4;
  EXPECT_EQ(model.Describe(), "synthetic weights of 4 bits, groups of 128");
  model.shards = 8;
  EXPECT_NE(model.Describe().find("rank 0's share of 8"), std::string::npos);
}

}  // namespace
}  // namespace bitshard
