// The header of a GGUF file (versions 2 and 3): its metadata and where its tensors lie.
//
// A file is "GGUF", u32 version, u64 tensor count, u64 metadata count; the metadata {string key,
// u32 type, value}; the tensors {string name, u32 n_dims, u64 dims[n_dims] (contiguous one first),
// u32 type, u64 offset}; padding to the alignment; data, from where offsets count. A string is u64
// length and bytes. All little-endian.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/checkpoint/byte_cursor.h"

namespace bitshard {

enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

struct GgufArray {
  GgufValueType type = GgufValueType::kU8;
  uint64_t count = 0;
  std::string bytes;  // the elements as stored, unless they are strings
  std::vector<std::string> strings;
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray>;

// Metadata by key. Writers use integers of varying widths: any integer type serves where a number
// is expected. Errors name the file and the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string where) : where_(std::move(where)) {}

  // DATA_LOSS when the key is there already.
  absl::Status Add(std::string key, GgufValue value);

  const std::string& where() const { return where_; }
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const GgufValue* Find(std::string_view key) const;

  absl::StatusOr<std::optional<uint64_t>> Unsigned(std::string_view key, uint64_t max) const;
  // Also takes an array (one entry a layer) of equal numbers; UNIMPLEMENTED when they differ.
  absl::StatusOr<std::optional<uint64_t>> UniformUnsigned(std::string_view key, uint64_t max) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;  // finite
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(
      std::string_view key) const;  // empty when missing
  absl::StatusOr<std::vector<int32_t>> Int32s(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;

 private:
  absl::Status Wrong(std::string_view key, std::string_view expected) const;

  std::string where_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // as stored: dims[0] is the contiguous one
  uint32_t type = 0;           // known to FindGgufType
  uint64_t offset = 0;         // absolute in the file
  uint64_t bytes = 0;
};

struct GgufHeader {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
};

// Everything in the header is checked: counts, types, alignment, and that the tensors lie inside
// the file and apart.
absl::StatusOr<GgufHeader> ParseGguf(ByteCursor& cursor);

}  // namespace bitshard
