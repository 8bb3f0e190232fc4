// Every line of validation of the GGUF container, truncation at every kind of place, and split
// models.
#include "coordinator/checkpoint/gguf.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/checkpoint/gguf_names.h"
#include "tests/coordinator/checkpoint/gguf_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/coordinator/shard/made_gguf.h"

namespace bitshard {
namespace {

absl::StatusOr<GgufHeader> Parse(const std::string& file) {
  ByteCursor cursor(
      [&file](uint64_t offset, uint64_t count, char* out) {
        std::memcpy(out, file.data() + offset, count);
        return absl::OkStatus();
      },
      file.size(), "f");
  return ParseGguf(cursor);
}

void ExpectError(const std::string& file, const std::string& part,
                 absl::StatusCode code = absl::StatusCode::kDataLoss) {
  const absl::Status status = Parse(file).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

GgufWriter Good() {
  GgufWriter writer;
  writer.String("general.architecture", "llama").U32("llama.block_count", 1);
  writer.Tensor("a", {32, 2}, 8, std::string(68, 'x')).Tensor("b", {3}, 0, std::string(12, 'y'));
  return writer;
}

TEST(Gguf, ReadsMetadataOfEveryTypeAndTensors) {
  GgufWriter writer = Good();
  writer.Raw("u8", 0, "\x07").Raw("i8", 1, "\xff").Raw("u16", 2, LittleEndian<uint16_t>(9));
  writer.Raw("i16", 3, LittleEndian<int16_t>(-2))
      .Raw("i32", 5, LittleEndian<int32_t>(-3))
      .F32("f32", 0.5f);
  writer.Raw("bool", 7, "\x01")
      .Raw("u64", 10, LittleEndian<uint64_t>(1))
      .Raw("i64", 11, LittleEndian<int64_t>(-4));
  writer.Raw("f64", 12, LittleEndian(0.25)).Strings("strings", {"x", ""}).Int32s("ints", {1, -2});
  const auto header = Parse(writer.Build());
  ASSERT_TRUE(header.ok()) << header.status();
  const GgufMetadata& m = header->metadata;
  EXPECT_EQ(**m.Unsigned("u8", 10), 7);
  EXPECT_EQ(**m.Number("i8"), -1);
  EXPECT_EQ(**m.Unsigned("u16", 10), 9);
  EXPECT_EQ(**m.Number("i16"), -2);
  EXPECT_EQ(**m.Number("f32"), 0.5);
  EXPECT_EQ(**m.Number("f64"), 0.25);
  EXPECT_EQ(**m.Bool("bool"), true);
  EXPECT_EQ(*m.Strings("strings"), (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(*m.Int32s("ints"), (std::vector<int32_t>{1, -2}));
  EXPECT_EQ(*m.Unsigned("missing", 1), std::nullopt);
  EXPECT_EQ(m.Unsigned("u8", 6).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(m.Unsigned("i8", 6).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(m.Bool("u8").status().code(), absl::StatusCode::kInvalidArgument);

  ASSERT_EQ(header->tensors.size(), 2);
  EXPECT_EQ(header->tensors[0].bytes, 68);
  EXPECT_EQ(header->tensors[1].offset - header->tensors[0].offset, 96);
}

TEST(Gguf, VersionTwoIsReadToo) {
  GgufWriter writer = Good();
  writer.version = 2;
  EXPECT_TRUE(Parse(writer.Build()).ok());
}

TEST(Gguf, OtherFilesVersionsAndByteOrdersAreRefused) {
  std::string file = Good().Build();
  ExpectError("GGML" + file.substr(4), "is not a GGUF file", absl::StatusCode::kInvalidArgument);
  for (const uint32_t version : {1u, 4u, 77u}) {
    GgufWriter writer = Good();
    writer.version = version;
    ExpectError(writer.Build(), absl::StrCat("has GGUF version ", version),
                absl::StatusCode::kUnimplemented);
  }
  GgufWriter writer = Good();
  writer.version = 3 << 24;
  ExpectError(writer.Build(), "big-endian", absl::StatusCode::kUnimplemented);
}

TEST(Gguf, CountsBeyondTheFileAreRefusedBeforeAnythingIsAllocated) {
  ExpectError(Good().Build(1u << 30, 2), "claims 1073741824 tensors");
  const std::string too_many = "more than the file can hold; is the download complete?";
  ExpectError(Good().Build(UINT64_MAX, 2), "tensors, " + too_many);
  ExpectError(Good().Build(2, UINT64_MAX / 2), "metadata keys, " + too_many);
  ExpectError(GgufWriter().Raw("k", 8, LittleEndian<uint64_t>(UINT64_MAX)).Build(),
              "'k' claims 18446744073709551615 bytes");
  ExpectError(GgufWriter().Raw("k", 8, LittleEndian<uint64_t>(5000)).Build(), "the file ends");
  const auto array = [](uint32_t type, uint64_t count) {
    return GgufWriter().Raw("k", 9, LittleEndian(type) + LittleEndian(count)).Build();
  };
  ExpectError(array(8, 1u << 20), "strings, " + too_many);
  ExpectError(array(0, 1u << 20), "the file ends");
  ExpectError(array(10, UINT64_MAX), "elements; at most");
  ExpectError(array(10, 1u << 30), "elements; at most");
}

TEST(Gguf, ValuesThatAreNoneAreRefused) {
  ExpectError(GgufWriter().Raw("k", 13, "xxxx").Build(), "'k' has unknown type 13");
  ExpectError(GgufWriter().Raw("k", 7, "\x02").Build(), "neither 0 nor 1");
  ExpectError(
      GgufWriter().Raw("k", 9, LittleEndian<uint32_t>(9) + LittleEndian<uint64_t>(0)).Build(),
      "array of arrays");
  ExpectError(
      GgufWriter().Raw("k", 9, LittleEndian<uint32_t>(99) + LittleEndian<uint64_t>(0)).Build(),
      "unknown type 99");
  ExpectError(GgufWriter()
                  .Raw("k", 9, LittleEndian<uint32_t>(7) + LittleEndian<uint64_t>(1) + "\x05")
                  .Build(),
              "neither 0 nor 1");
  ExpectError(GgufWriter().U32("k\xff", 1).Build(), "not valid UTF-8");
  ExpectError(GgufWriter().U32("k", 1).U32("k", 1).Build(), "metadata key 'k' appears twice");
}

TEST(Gguf, AlignmentMustBeASmallPowerOfTwo) {
  for (const uint32_t alignment : {1u, 8u, 64u, 65536u}) {
    GgufWriter writer;
    writer.alignment = alignment;
    writer.U32("general.alignment", alignment)
        .Tensor("a", {1}, 0, "1234")
        .Tensor("b", {1}, 0, "1234");
    EXPECT_TRUE(Parse(writer.Build()).ok()) << alignment;
  }
  ExpectError(GgufWriter().U32("general.alignment", 0).Build(), "not a power of two");
  ExpectError(GgufWriter().U32("general.alignment", 24).Build(), "not a power of two");
  ExpectError(GgufWriter().U32("general.alignment", 131072).Build(), "from 0 to 65536",
              absl::StatusCode::kInvalidArgument);
  ExpectError(GgufWriter().String("general.alignment", "32").Build(), "from 0 to 65536",
              absl::StatusCode::kInvalidArgument);
}

TEST(Gguf, TensorsThatCannotBeAreRefused) {
  const auto with = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset = 0) {
    GgufWriter writer = Good();
    return writer.TensorAt("t", dims, type, offset).Build();
  };
  ExpectError(with({}, 0), "has 0 dimensions");
  ExpectError(with({1, 1, 1, 1, 1}, 0), "has 5 dimensions");
  ExpectError(with({0}, 0), "a dimension of 0");
  ExpectError(with({4, 0}, 0), "a dimension of 0");
  ExpectError(with({33}, 8), "not whole blocks of 32");
  ExpectError(with({16, 2}, 3), "not whole blocks of 32");
  ExpectError(with({uint64_t{1} << 40, uint64_t{1} << 40}, 0), "larger than any file");
  ExpectError(with({uint64_t{1} << 62}, 0), "larger than any file");
  ExpectError(with({4}, 0, 17), "no multiple of the alignment 32");
  ExpectError(with({4}, 0, 1 << 20), "goes beyond the file's");
  ExpectError(with({4}, 0, UINT64_MAX - 31), "goes beyond the file's");
  ExpectError(with({4}, 0, 64), "overlap");
  for (const uint32_t type : {4u, 5u, 31u, 36u, 38u, 42u, 1000u}) {
    ExpectError(with({256}, type), absl::StrCat("has type ", type),
                absl::StatusCode::kUnimplemented);
  }
  GgufWriter twice = Good();
  ExpectError(twice.TensorAt("a", {4}, 0, 128).Build(), "tensor 'a' appears twice");
}

TEST(Gguf, EveryTruncationIsAnErrorAndNeverACrash) {
  const std::string file = MadeLlamaGguf({});
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); size += size < 4096 ? 1 : 997) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
  }
}

TEST(GgufNames, AreMappedToCanonicalOnes) {
  EXPECT_EQ(CanonicalGgufName("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(CanonicalGgufName("output.weight"), "lm_head.weight");
  EXPECT_EQ(CanonicalGgufName("blk.17.attn_q.bias"), "model.layers.17.self_attn.q_proj.bias");
  EXPECT_EQ(CanonicalGgufName("blk.0.ffn_norm.weight"),
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(CanonicalGgufName("rope_freqs.weight"), "rope_freqs.weight");
  for (const char* name : {"blk.0.unknown.weight", "blk.", "blk", "", ".", "blk.0", "x.y.z"}) {
    EXPECT_EQ(CanonicalGgufName(name), name);
  }
}

// A model in parts, written to files.
class SplitGguf : public testing::Test {
 protected:
  std::string Path(int part, int count) {
    char name[64];
    std::snprintf(name, sizeof(name), "/m-%05d-of-%05d.gguf", part, count);
    return folder_ + name;
  }
  void WritePart(int part, uint16_t number, uint16_t count, int32_t total,
                 const std::string& tensor) {
    GgufWriter writer;
    if (part == 1) writer.String("general.architecture", "llama");
    writer.Raw("split.no", 2, LittleEndian(number)).Raw("split.count", 2, LittleEndian(count));
    writer.Raw("split.tensors.count", 5, LittleEndian(total))
        .Tensor(tensor, {4}, 0, std::string(16, 'x'));
    WriteFile(Path(part, 2), writer.Build());
  }
  void ExpectOpenError(const std::string& path, absl::StatusCode code, const std::string& part) {
    const absl::Status status = OpenCheckpoint(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
  }

  const std::string folder_ = TempFolder();
};

TEST_F(SplitGguf, AllPartsMakeOneModel) {
  WritePart(1, 0, 2, 2, "output_norm.weight");
  WritePart(2, 1, 2, 2, "blk.0.attn_norm.weight");
  for (const std::string& path : {Path(1, 2), folder_}) {
    const auto checkpoint = OpenCheckpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->index.files().size(), 2);
    EXPECT_EQ(checkpoint->index.Find("model.layers.0.input_layernorm.weight")->parts[0].file, 1);
  }
}

TEST_F(SplitGguf, PartsThatAreMissingOrWrongAreNamed) {
  WritePart(1, 0, 2, 2, "output_norm.weight");
  ExpectOpenError(Path(1, 2), absl::StatusCode::kNotFound,
                  "m-00002-of-00002.gguf is missing: the model has 2 parts");
  WritePart(2, 0, 2, 2, "a");
  ExpectOpenError(Path(1, 2), absl::StatusCode::kInvalidArgument, "says it is part 0 of 2");
  WritePart(2, 1, 3, 2, "a");
  ExpectOpenError(Path(1, 2), absl::StatusCode::kInvalidArgument, "says it is part 1 of 3");
  WritePart(2, 1, 2, 2, "output_norm.weight");
  ExpectOpenError(Path(1, 2), absl::StatusCode::kDataLoss, "is already in");
  WritePart(2, 1, 2, 2, "a");
  WritePart(1, 0, 2, 3, "output_norm.weight");
  ExpectOpenError(Path(1, 2), absl::StatusCode::kDataLoss,
                  "claims 3 tensors in all parts, found 2");
  WritePart(1, 0, 2, 2, "output_norm.weight");
  ExpectOpenError(Path(2, 2), absl::StatusCode::kInvalidArgument, "is not the first part");
  std::filesystem::rename(Path(1, 2), folder_ + "/renamed.gguf");
  ExpectOpenError(folder_ + "/renamed.gguf", absl::StatusCode::kInvalidArgument,
                  "must keep its name");
}

}  // namespace
}  // namespace bitshard
