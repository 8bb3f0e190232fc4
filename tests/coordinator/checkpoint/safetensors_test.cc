// Every line of validation of the safetensors container: one file's header, and the files of a
// folder.
#include "coordinator/checkpoint/safetensors.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/coordinator/checkpoint/gguf_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"

namespace bitshard {
namespace {

void ExpectHeaderError(const std::string& json, uint64_t data_bytes, const std::string& part,
                       absl::StatusCode code = absl::StatusCode::kDataLoss) {
  const absl::Status status = ParseSafetensorsHeader(json, data_bytes, "f").status();
  EXPECT_EQ(status.code(), code) << status << "\n" << json;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}");
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"a":)", Entry(dtype, shape, offsets), "}");
}

std::string FileOf(const std::string& json, const std::string& data) {
  return LittleEndian<uint64_t>(json.size()) + json + data;
}

TEST(SafetensorsHeader, ReadsTheTinyExampleOfTheSpecification) {
  const auto header =
      ParseSafetensorsHeader(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4, "f");
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->entries.size(), 1);
  EXPECT_EQ(header->entries[0].name, "a");
  EXPECT_EQ(header->entries[0].format, "f16");
  EXPECT_EQ(header->entries[0].shape, (std::vector<uint64_t>{2}));
}

TEST(SafetensorsHeader, AcceptsWhatTheReferenceAccepts) {
  const std::vector<std::pair<std::string, uint64_t>> good = {
      {"{}", 0},
      {" {}  ", 0},                        // space before, padding after
      {One("F32", "[]", "[0,4]"), 4},      // a scalar
      {One("BF16", "[0,7]", "[0,0]"), 0},  // an empty tensor
      {One("F4", "[4]", "[0,2]"), 2},      // half bytes that fill whole ones
      {One("F6_E2M3", "[2,2]", "[0,3]"), 3},
      {R"({"__metadata__":{"format":"pt"}})", 0},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":[{}]}})",
       1},  // unknown fields
      {absl::StrCat(R"({"b":)", Entry("U8", "[1]", "[1,2]"), R"(,"a":)",
                    Entry("U8", "[1]", "[0,1]"), "}"),
       2}};
  for (const auto& [json, bytes] : good) {
    const auto header = ParseSafetensorsHeader(json, bytes, "f");
    EXPECT_TRUE(header.ok()) << json << "\n" << header.status();
  }
}

TEST(SafetensorsHeader, RefusesWhatIsNotAnObjectOfTensors) {
  ExpectHeaderError("", 0, "not a JSON object");
  ExpectHeaderError("[]", 0, "not a JSON object");
  ExpectHeaderError("\t{}", 0, "not a JSON object");
  ExpectHeaderError("{", 0, "no valid JSON at byte");
  ExpectHeaderError("{} x", 0, "no valid JSON at byte");
  ExpectHeaderError("{\"\xff\":1}", 0, "no valid JSON at byte");
  ExpectHeaderError(R"({"a":1})", 0, "not described by an object");
  ExpectHeaderError(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1,
                    "lacks dtype, shape or data_offsets");
  ExpectHeaderError(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1,
                    "lacks dtype, shape or data_offsets");
  ExpectHeaderError(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "lacks dtype, shape or data_offsets");
  ExpectHeaderError(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1,
                    "lacks dtype, shape or data_offsets");
  ExpectHeaderError(R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}", 0,
                    "nested deeper than 64");
}

TEST(SafetensorsHeader, RefusesDuplicateNames) {
  const std::string entry = Entry("U8", "[0]", "[0,0]");
  ExpectHeaderError(absl::StrCat(R"({"a":)", entry, R"(,"a":)", entry, "}"), 0,
                    "the key \"a\" appears twice");
}

TEST(SafetensorsHeader, RefusesUnknownAndFnuzTypes) {
  for (const char* dtype : {"F17", "f16", "", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    ExpectHeaderError(One(dtype, "[1]", "[0,1]"), 1, "not known here",
                      absl::StatusCode::kUnimplemented);
  }
}

TEST(SafetensorsHeader, RefusesShapesThatAreNoSizes) {
  for (const char* shape : {"[-1]", "[1.0]", "[1e3]", "[\"1\"]", "[null]", "1", "{}",
                            "[18446744073709551616]", "[1,1,1,1,1,1,1,1,1]"}) {
    ExpectHeaderError(One("U8", shape, "[0,1]"), 1, "shape is not a list");
  }
}

TEST(SafetensorsHeader, RefusesOffsetsThatAreNotARangeOfTheData) {
  for (const char* offsets :
       {"[0]", "[0,1,2]", "[-1,0]", "[0,1.0]", "[0,1e0]", "\"01\"", "[null,1]"}) {
    ExpectHeaderError(One("U8", "[1]", offsets), 1, "not two unsigned whole numbers");
  }
  ExpectHeaderError(One("U8", "[1]", "[1,0]"), 1, "do not lie in the file's");
  ExpectHeaderError(One("U8", "[2]", "[0,2]"), 1, "do not lie in the file's");
  ExpectHeaderError(One("U8", "[2]", "[0,18446744073709551615]"), 1, "do not lie in the file's");
}

TEST(SafetensorsHeader, RefusesSizesThatDoNotMatchTheShape) {
  ExpectHeaderError(One("F16", "[2]", "[0,5]"), 5, "need another size than the 5 bytes");
  ExpectHeaderError(One("F4", "[3]", "[0,2]"), 2, "need another size");
  ExpectHeaderError(One("F32", "[4294967296,4294967296]", "[0,0]"), 0, "need another size");
  ExpectHeaderError(One("F64", "[9223372036854775808,2]", "[0,0]"), 0, "need another size");
}

TEST(SafetensorsHeader, RefusesHolesOverlapsAndTrailingBytes) {
  const auto two = [](const char* first, const char* second) {
    return absl::StrCat(R"({"a":)", Entry("U8", "[2]", first), R"(,"b":)",
                        Entry("U8", "[2]", second), "}");
  };
  EXPECT_TRUE(ParseSafetensorsHeader(two("[0,2]", "[2,4]"), 4, "f").ok());
  ExpectHeaderError(two("[0,2]", "[3,5]"), 5,
                    "begins at data byte 3 but the one before it ends at 2");
  ExpectHeaderError(two("[0,2]", "[1,3]"), 3,
                    "begins at data byte 1 but the one before it ends at 2");
  ExpectHeaderError(two("[1,3]", "[3,5]"), 5,
                    "begins at data byte 1 but the one before it ends at 0");
  ExpectHeaderError(two("[0,2]", "[2,4]"), 5, "the tensors end at data byte 4 but the file has 5");
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotStrings) {
  ExpectHeaderError(R"({"__metadata__":[]})", 0, "__metadata__ is not an object");
  ExpectHeaderError(R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' is not a string");
}

class SafetensorsFolder : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    return WriteFile(folder_ + "/" + name, bytes);
  }
  // A file of one U8 tensor a name.
  void WriteTensors(const std::string& file, const std::vector<std::string>& names) {
    std::string json = "{", data;
    for (const std::string& name : names) {
      absl::StrAppend(
          &json, json.size() > 1 ? "," : "", "\"", name,
          "\":", Entry("U8", "[1]", absl::StrCat("[", data.size(), ",", data.size() + 1, "]")));
      data += 'x';
    }
    Write(file, FileOf(json + "}", data));
  }
  void WriteIndex(const std::string& weight_map) {
    Write("model.safetensors.index.json",
          absl::StrCat(R"({"metadata":{"total_size":1},"weight_map":)", weight_map, "}"));
  }
  void ExpectError(absl::StatusCode code, const std::string& part) {
    TensorIndex index;
    const absl::Status status = IndexSafetensorsFolder(folder_, index);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
  }

  const std::string folder_ = TempFolder();
};

TEST_F(SafetensorsFolder, FilesThatAreTooShortOrClaimTooMuchAreRefused) {
  Write("model.safetensors", "1234567");
  ExpectError(absl::StatusCode::kDataLoss, "has only 7 bytes");
  Write("model.safetensors", LittleEndian<uint64_t>(3) + "{}");
  ExpectError(absl::StatusCode::kDataLoss, "header claims 3 bytes but the file has 10");
  Write("model.safetensors", LittleEndian<uint64_t>(UINT64_MAX) + "{}");
  ExpectError(absl::StatusCode::kDataLoss, "header claims 18446744073709551615 bytes");
  Write("model.safetensors", LittleEndian<uint64_t>(100'000'001) + "{}");
  ExpectError(absl::StatusCode::kDataLoss, "100000000 are allowed");
  Write("model.safetensors", "");
  ExpectError(absl::StatusCode::kDataLoss, "is empty");
}

TEST_F(SafetensorsFolder, TheIndexNamesTheFilesAndTheirOffsetsAreAbsolute) {
  WriteTensors("one.safetensors", {"a", "b"});
  WriteTensors("two.safetensors", {"c"});
  WriteTensors("left.safetensors", {"a"});
  WriteIndex(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  TensorIndex index;
  const absl::Status status = IndexSafetensorsFolder(folder_, index);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(index.files().size(), 2);
  EXPECT_EQ(index.tensors().size(), 3);
  const TensorInfo* const b = index.Find("b");
  ASSERT_EQ(b->parts.size(), 1);
  EXPECT_EQ(b->parts[0].offset + 1, index.files()[b->parts[0].file].size_bytes);
}

TEST_F(SafetensorsFolder, TensorsThatTheIndexDoesNotNameAreIgnored) {
  WriteTensors("one.safetensors", {"a", "extra"});
  WriteIndex(R"({"a":"one.safetensors"})");
  TensorIndex index;
  ASSERT_TRUE(IndexSafetensorsFolder(folder_, index).ok());
  EXPECT_EQ(index.Find("extra"), nullptr);
}

TEST_F(SafetensorsFolder, WithoutAnIndexEveryFileCountsAndDuplicatesAreRefused) {
  WriteTensors("one.safetensors", {"a"});
  WriteTensors("two.safetensors", {"b"});
  TensorIndex index;
  ASSERT_TRUE(IndexSafetensorsFolder(folder_, index).ok());
  EXPECT_EQ(index.tensors().size(), 2);
  WriteTensors("two.safetensors", {"a"});
  ExpectError(absl::StatusCode::kDataLoss, "tensor 'a' (a) is already in");
}

TEST_F(SafetensorsFolder, MissingShardsAndTensorsAreNamed) {
  WriteTensors("one.safetensors", {"a"});
  WriteIndex(R"({"a":"one.safetensors","b":"two.safetensors"})");
  ExpectError(absl::StatusCode::kNotFound,
              "two.safetensors: No such file or directory; model.safetensors.index.json names it");
  WriteIndex(R"({"a":"one.safetensors","b":"one.safetensors"})");
  ExpectError(absl::StatusCode::kInvalidArgument, "tensor 'b' is in");
  std::filesystem::create_directories(folder_ + "/two.safetensors");
  WriteIndex(R"({"a":"two.safetensors"})");
  ExpectError(absl::StatusCode::kInvalidArgument, "is a folder, not a file");
}

TEST_F(SafetensorsFolder, NamesThatLeadOutOfTheFolderAreRefused) {
  WriteTensors("one.safetensors", {"a"});
  for (const char* name :
       {R"("../one.safetensors")", R"("/etc/one.safetensors")", R"("sub/one.safetensors")",
        R"("a\\b.safetensors")", R"("a\u0000.safetensors")", R"("..safetensors")", R"("")",
        R"("one.bin")", "1", "null", "[]"}) {
    WriteIndex(absl::StrCat(R"({"a":)", name, "}"));
    ExpectError(absl::StatusCode::kInvalidArgument, "not the plain name of a .safetensors file");
  }
}

TEST_F(SafetensorsFolder, AnIndexWithoutAMapIsRefused) {
  for (const char* text :
       {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":null})"}) {
    Write("model.safetensors.index.json", text);
    ExpectError(absl::StatusCode::kInvalidArgument, "has no weight_map");
  }
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})");
  ExpectError(absl::StatusCode::kDataLoss, "the key \"a\" appears twice");
}

}  // namespace
}  // namespace bitshard
