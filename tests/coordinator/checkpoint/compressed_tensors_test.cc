// compressed-tensors: what the stored tensors of a module must be, and the weight that they make.
#include "coordinator/checkpoint/compressed_tensors.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/checkpoint/safetensors.h"
#include "tests/coordinator/checkpoint/made_ct.h"
#include "tests/coordinator/checkpoint/safetensors_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"

namespace bitshard {
namespace {

using absl::StatusCode;

void ExpectError(const absl::Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

std::string Config(const std::string& settings) {
  return absl::StrCat(R"({"quantization_config":)", settings, "}");
}

// Folders with one module "m.q_proj" of 40 rows, whose tensors a test changes.
class CompressedTensors : public testing::Test {
 protected:
  void Make(const std::string& format, uint64_t rows = 40, uint64_t cols = 64) {
    tensors_.clear();
    std::mt19937_64 random(1);
    AddCtWeight(format, "m.q_proj", rows, cols, random, tensors_);
    settings_ = CtSettings(format);
  }
  StoredTensor& Part(const std::string& suffix) { return tensors_["m.q_proj." + suffix]; }
  void Erase(const std::string& suffix) { tensors_.erase("m.q_proj." + suffix); }

  absl::StatusOr<TensorIndex> Open() {
    const std::string folder = TempFolder();
    WriteFile(folder + "/model.safetensors", SafetensorsFile(tensors_));
    TensorIndex stored;
    const absl::Status status = IndexSafetensorsFolder(folder, stored);
    if (!status.ok()) return status;
    const auto declaration = FindQuantization(Config(settings_), "config.json");
    if (!declaration.ok()) return declaration.status();
    return ApplyQuantization(declaration->value(), stored);
  }
  std::string FormatOfWeight() {
    const auto index = Open();
    EXPECT_TRUE(index.ok()) << index.status();
    return index->Find("m.q_proj.weight")->format;
  }
  void ExpectOpenError(StatusCode code, const std::string& part) {
    ExpectError(Open().status(), code, part);
  }

  StoredTensors tensors_;
  std::string settings_;
};

TEST_F(CompressedTensors, PartsBecomeOneWeightWhoseFormatSaysAllParameters) {
  for (const std::string format :
       {"ct_int2 group=32 scale=bf16 sym", "ct_int3 group=64 scale=f16 asym dense",
        "ct_int3 channel scale=f16 asym padded", "ct_int4 channel scale=f32 asym",
        "ct_int5 group=16 scale=bf16 sym padded", "ct_int6 group=32 scale=f32 sym dense",
        "ct_int7 channel scale=bf16 asym dense", "ct_int8 group=1 scale=bf16 asym"}) {
    Make(format);
    tensors_["m.q_proj.bias"] = {"BF16", {40}, std::string(80, '\0')};
    const auto index = Open();
    ASSERT_TRUE(index.ok()) << index.status();
    ASSERT_EQ(index->tensors().size(), 2);  // and the bias
    const TensorInfo& weight = *index->Find("m.q_proj.weight");
    EXPECT_EQ(weight.format, format);
    EXPECT_EQ(weight.shape, (std::vector<uint64_t>{40, 64}));
    EXPECT_EQ(weight.parts.size(), FindFormat(format)->part_count());
    EXPECT_EQ(weight.parts[0].source_name, "m.q_proj.weight_packed");
    EXPECT_EQ(weight.bytes(), *StoredBytes(*FindFormat(format), 40, 64));
  }
}

TEST_F(CompressedTensors, WithoutWeightShapeTheColumnsFollowFromGroupsOrWholeWords) {
  for (const std::string format :
       {"ct_int5 group=32 scale=bf16 sym padded", "ct_int4 channel scale=bf16 sym"}) {
    Make(format);
    Erase("weight_shape");
    EXPECT_EQ(FormatOfWeight(), format);
  }
  Make("ct_int5 channel scale=bf16 sym dense");
  Erase("weight_shape");
  ExpectOpenError(StatusCode::kInvalidArgument, "needs a weight_shape, which is missing");
}

TEST_F(CompressedTensors, APackingThatTheWidthDoesNotDecideIsRefused) {
  // 13 codes of 5 bits: 3 words, dense or padded.
  Make("ct_int5 channel scale=bf16 sym dense", 40, 13);
  ExpectOpenError(StatusCode::kInvalidArgument, "ambiguous");
  Make("ct_int4 channel scale=bf16 sym", 40, 13);  // one packing
  EXPECT_EQ(FormatOfWeight(), "ct_int4 channel scale=bf16 sym");
  Make("ct_int5 channel scale=bf16 sym dense");
  Part("weight_packed") = {"I32", {40, 12}, std::string(40 * 12 * 4, '\0')};
  ExpectOpenError(StatusCode::kInvalidArgument,
                  "expected a width of 10 (dense) or 11 (padded) words for 64 columns");
}

TEST_F(CompressedTensors, StrayZeroPointsOfSymmetricWeightsAreKeptToBeChecked) {
  Make("ct_int4 group=32 scale=bf16 sym");
  Part("weight_zero_point") = {"I8", {40, 2}, std::string(80, '\0')};
  EXPECT_EQ(FormatOfWeight(), "ct_int4 group=32 scale=bf16 sym stray=1");
  Part("weight_zero_point") = {"BF16", {40, 2}, std::string(160, '\0')};
  EXPECT_EQ(FormatOfWeight(), "ct_int4 group=32 scale=bf16 sym stray=2");
  Part("weight_zero_point") = {"I32", {5, 2}, std::string(40, '\0')};
  EXPECT_EQ(FormatOfWeight(), "ct_int4 group=32 scale=bf16 sym stray=packed");
  Part("weight_zero_point") = {"I8", {40, 3}, std::string(120, '\0')};
  ExpectOpenError(StatusCode::kInvalidArgument, "weight_zero_point' is i8 [40, 3]");
}

TEST_F(CompressedTensors, TensorsThatContradictTheConfigAreRefused) {
  const std::string asym = "ct_int4 group=32 scale=bf16 asym";
  const auto expect = [&](StatusCode code, const std::string& part) {
    ExpectOpenError(code, part);
  };
  Make(asym);
  Erase("weight_zero_point");
  expect(StatusCode::kInvalidArgument, "has no weight_zero_point");
  Make(asym);
  Part("weight_zero_point").dtype = "U32";
  expect(StatusCode::kInvalidArgument, "expected i32 [5, 2]");
  Make(asym);
  Erase("weight_scale");
  expect(StatusCode::kInvalidArgument, "has no weight_scale");
  Make(asym);
  Part("weight_scale") = {"BF16", {40, 1}, std::string(80, '\0')};
  expect(StatusCode::kInvalidArgument,
         "weight_scale' is bf16 [40, 1], expected f32, f16 or bf16 [40, 2]");
  Make(asym);
  Part("weight_scale").dtype = "I16";
  expect(StatusCode::kInvalidArgument, "weight_scale' is i16");
  Make(asym);
  Part("weight_shape").bytes = I64Bytes(40, 65);
  expect(StatusCode::kInvalidArgument, "65 columns are no whole groups of 32");
  Make(asym);
  Part("weight_shape").bytes = I64Bytes(41, 64);
  expect(StatusCode::kInvalidArgument, "says [41, 64]");
  Make(asym);
  Part("weight_shape").bytes = I64Bytes(40, ~uint64_t{0});
  expect(StatusCode::kInvalidArgument, "says [40, -1]");
  Make(asym);
  Part("weight_shape") = {"I32", {2}, std::string(8, '\1')};
  expect(StatusCode::kInvalidArgument, "expected i64 [2]");
  Make(asym);
  Part("weight_packed").dtype = "F32";
  expect(StatusCode::kInvalidArgument, "expected i32 with two dimensions");
  Make(asym);
  Part("weight_packed") = {"U8", {40, 32}, std::string(40 * 32, '\0')};
  expect(StatusCode::kUnimplemented, "nvfp4, mxfp4");
  Make(asym);
  Part("weight_packed").shape = {2, 20, 8};
  expect(StatusCode::kUnimplemented, "stacks of experts");
  Make(asym);
  Part("weight_g_idx") = {"I32", {64}, std::string(256, '\0')};
  expect(StatusCode::kUnimplemented, "weight_g_idx");
  Make(asym);
  Part("weight") = {"BF16", {40, 64}, std::string(40 * 128, '\0')};
  expect(StatusCode::kInvalidArgument, "has a plain 'm.q_proj.weight' too");
  Make(asym);
  settings_ = absl::StrReplaceAll(settings_, {{"\"Linear\"", "\"re:.*k_proj\""}});
  expect(StatusCode::kInvalidArgument, "names no group for its module");
  Make(asym);
  settings_ = absl::StrReplaceAll(
      settings_, {{"\"quant_method\"", "\"ignore\":[\"m.q_proj\"],\"quant_method\""}});
  expect(StatusCode::kInvalidArgument, "leaves its module out ('m.q_proj')");
  Make(asym);
  Erase("weight_packed");
  expect(StatusCode::kUnimplemented, "without 'm.q_proj.weight_packed'");
}

TEST_F(CompressedTensors, MatchedModulesThatArePlainAreLoadedPlain) {
  Make("ct_int4 group=32 scale=bf16 sym");
  tensors_["m.k_proj.weight"] = {"BF16", {2, 4}, std::string(16, '\0')};
  const auto index = Open();
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->Find("m.k_proj.weight")->format, "bf16");
  for (const char* status : {"initialized", "calibration", "frozen"}) {
    Make("ct_int4 group=32 scale=bf16 sym");
    tensors_["m.k_proj.weight"] = {"BF16", {2, 4}, std::string(16, '\0')};
    settings_ = absl::StrReplaceAll(
        settings_, {{"\"quant_method\"",
                     absl::StrCat("\"quantization_status\":\"", status, "\",\"quant_method\"")}});
    ExpectOpenError(StatusCode::kUnimplemented, "nothing is packed yet");
  }
}

// Embedding and head, tied: both stored are two matrices, one stored is both.
TEST(CompressedTensorsFolder, TiedEmbeddingsFollowWhatIsStored) {
  const auto open = [](bool embedding, bool head) {
    MadeCtShape shape{.tied = true};
    shape.stores_embedding = embedding;
    shape.stores_head = head;
    return OpenCheckpoint(
        WriteMadeCtLlama(absl::StrCat(TempFolder(), "/", embedding, head), shape));
  };
  const auto both = open(true, true);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_FALSE(both->config.tied_embeddings);
  const auto embedding = open(true, false);
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_TRUE(embedding->config.tied_embeddings);
  const auto head = open(false, true);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_TRUE(head->config.tied_embeddings);
  const TensorInfo* const shared = head->index.Find("model.embed_tokens.weight");
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->parts[0].source_name, "lm_head.weight_packed");
}

}  // namespace
}  // namespace bitshard
