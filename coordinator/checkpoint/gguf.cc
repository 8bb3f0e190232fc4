#include "coordinator/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/gguf_types.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr char kMagic[] = "GGUF";
constexpr uint64_t kMinKeyValueBytes = 13;  // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 24;    // empty name, no dimension, type, offset
constexpr uint64_t kMaxTensors = 1'000'000;
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint64_t kMaxArrayBytes = 256ull << 20;
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kDefaultAlignment = 32;
constexpr char kTooMany[] = "more than the file can hold; is the download complete?";

absl::Status Damaged(const ByteCursor& cursor, const std::string& what) {
  return absl::DataLossError(absl::StrCat(cursor.where(), ": ", what));
}

absl::StatusOr<std::string> ReadString(ByteCursor& cursor, uint64_t max_bytes,
                                       const std::string& what) {
  ASSIGN_OR_RETURN(const uint64_t length, cursor.Read<uint64_t>(what));
  if (length > max_bytes) {
    return Damaged(cursor, absl::StrCat(what, " claims ", length, " bytes; at most ", max_bytes,
                                        " are allowed"));
  }
  return cursor.ReadBytes(length, what);
}

absl::StatusOr<std::string> ReadName(ByteCursor& cursor, const std::string& what) {
  ASSIGN_OR_RETURN(std::string name, ReadString(cursor, kMaxNameBytes, what));
  if (FirstInvalidUtf8(name)) return Damaged(cursor, absl::StrCat(what, " is not valid UTF-8"));
  return name;
}

// Bytes of a number as stored; 0 for types that are no numbers.
uint64_t BytesOfNumber(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

absl::StatusOr<GgufArray> ReadArray(ByteCursor& cursor, const std::string& what) {
  GgufArray array;
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>(what));
  ASSIGN_OR_RETURN(array.count, cursor.Read<uint64_t>(what));
  array.type = static_cast<GgufValueType>(type);
  if (array.type == GgufValueType::kArray)
    return Damaged(cursor, absl::StrCat(what, " is an array of arrays"));
  if (array.type == GgufValueType::kString) {
    if (array.count > cursor.remaining() / sizeof(uint64_t)) {
      return Damaged(cursor, absl::StrCat(what, " claims ", array.count, " strings, ", kTooMany));
    }
    uint64_t total = 0;
    for (uint64_t i = 0; i < array.count; ++i) {
      ASSIGN_OR_RETURN(std::string text, ReadString(cursor, kMaxArrayBytes, what));
      total += text.size() + sizeof(uint64_t);
      if (total > kMaxArrayBytes)
        return Damaged(cursor, absl::StrCat(what, " has more than ", kMaxArrayBytes, " bytes"));
      array.strings.push_back(std::move(text));
    }
    return array;
  }
  const uint64_t element_bytes = BytesOfNumber(array.type);
  if (element_bytes == 0)
    return Damaged(cursor, absl::StrCat(what, " has elements of unknown type ", type));
  const std::optional<uint64_t> bytes = CheckedMul(array.count, element_bytes);
  if (!bytes || *bytes > kMaxArrayBytes) {
    return Damaged(cursor, absl::StrCat(what, " claims ", array.count, " elements; at most ",
                                        kMaxArrayBytes, " bytes are allowed"));
  }
  ASSIGN_OR_RETURN(array.bytes, cursor.ReadBytes(*bytes, what));
  if (array.type == GgufValueType::kBool &&
      array.bytes.find_first_not_of(std::string("\0\1", 2)) != std::string::npos) {
    return Damaged(cursor, absl::StrCat(what, " holds a bool that is neither 0 nor 1"));
  }
  return array;
}

template <typename Stored, typename Kept>
absl::StatusOr<GgufValue> ReadNumber(ByteCursor& cursor, const std::string& what) {
  ASSIGN_OR_RETURN(const Stored value, cursor.Read<Stored>(what));
  return GgufValue(static_cast<Kept>(value));
}

absl::StatusOr<GgufValue> ReadValue(ByteCursor& cursor, const std::string& what) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>(what));
  switch (static_cast<GgufValueType>(type)) {
    case GgufValueType::kU8:
      return ReadNumber<uint8_t, uint64_t>(cursor, what);
    case GgufValueType::kU16:
      return ReadNumber<uint16_t, uint64_t>(cursor, what);
    case GgufValueType::kU32:
      return ReadNumber<uint32_t, uint64_t>(cursor, what);
    case GgufValueType::kU64:
      return ReadNumber<uint64_t, uint64_t>(cursor, what);
    case GgufValueType::kI8:
      return ReadNumber<int8_t, int64_t>(cursor, what);
    case GgufValueType::kI16:
      return ReadNumber<int16_t, int64_t>(cursor, what);
    case GgufValueType::kI32:
      return ReadNumber<int32_t, int64_t>(cursor, what);
    case GgufValueType::kI64:
      return ReadNumber<int64_t, int64_t>(cursor, what);
    case GgufValueType::kF32:
      return ReadNumber<float, double>(cursor, what);
    case GgufValueType::kF64:
      return ReadNumber<double, double>(cursor, what);
    case GgufValueType::kBool: {
      ASSIGN_OR_RETURN(const uint8_t value, cursor.Read<uint8_t>(what));
      if (value > 1) return Damaged(cursor, absl::StrCat(what, " is a bool but neither 0 nor 1"));
      return GgufValue(value == 1);
    }
    case GgufValueType::kString: {
      ASSIGN_OR_RETURN(std::string text, ReadString(cursor, kMaxArrayBytes, what));
      return GgufValue(std::move(text));
    }
    case GgufValueType::kArray: {
      ASSIGN_OR_RETURN(GgufArray array, ReadArray(cursor, what));
      return GgufValue(std::move(array));
    }
  }
  return Damaged(cursor, absl::StrCat(what, " has unknown type ", type));
}

absl::Status ReadMetadata(ByteCursor& cursor, uint64_t count, GgufMetadata& metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(std::string key, ReadName(cursor, absl::StrCat("metadata key ", i)));
    ASSIGN_OR_RETURN(GgufValue value, ReadValue(cursor, absl::StrCat("metadata '", key, "'")));
    RETURN_IF_ERROR(metadata.Add(std::move(key), std::move(value)));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Alignment(const GgufMetadata& metadata) {
  constexpr char kKey[] = "general.alignment";
  ASSIGN_OR_RETURN(const auto given, metadata.Unsigned(kKey, kMaxAlignment));
  const uint64_t alignment = given.value_or(kDefaultAlignment);
  if (std::has_single_bit(alignment)) return alignment;
  return absl::DataLossError(absl::StrCat(metadata.where(), ": ", kKey, " is ", alignment,
                                          ", not a power of two up to ", kMaxAlignment));
}

// `offset` stays relative to the data section, whose place is known only after the last tensor.
absl::StatusOr<GgufTensor> ReadTensor(ByteCursor& cursor, uint64_t number) {
  GgufTensor tensor;
  ASSIGN_OR_RETURN(tensor.name, ReadName(cursor, absl::StrCat("the name of tensor ", number)));
  const std::string what = absl::StrCat("tensor '", tensor.name, "'");
  ASSIGN_OR_RETURN(const uint32_t n_dims, cursor.Read<uint32_t>(what));
  if (n_dims < 1 || n_dims > 4)
    return Damaged(cursor, absl::StrCat(what, " has ", n_dims, " dimensions, not 1 to 4"));
  std::optional<uint64_t> elements = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    ASSIGN_OR_RETURN(const uint64_t dim, cursor.Read<uint64_t>(what));
    if (dim == 0) return Damaged(cursor, absl::StrCat(what, " has a dimension of 0"));
    if (elements) elements = CheckedMul(*elements, dim);
    tensor.dims.push_back(dim);
  }
  ASSIGN_OR_RETURN(tensor.type, cursor.Read<uint32_t>(what));
  ASSIGN_OR_RETURN(tensor.offset, cursor.Read<uint64_t>(what));
  const GgufType* const type = FindGgufType(tensor.type);
  if (type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(cursor.where(), ": ", what, " has type ",
                                                 tensor.type,
                                                 ", which is unknown or was removed from GGUF"));
  }
  if (tensor.dims[0] % type->block_elements != 0) {
    return Damaged(cursor,
                   absl::StrCat(what, " has rows of ", tensor.dims[0],
                                " values, which are not whole blocks of ", type->block_elements));
  }
  const auto bytes =
      elements ? CheckedMul(*elements / type->block_elements, type->block_bytes) : std::nullopt;
  if (!bytes) return Damaged(cursor, absl::StrCat(what, " is larger than any file"));
  tensor.bytes = *bytes;
  return tensor;
}

// Makes the offsets absolute and checks that the tensors lie inside the file and apart.
absl::Status PlaceTensors(const ByteCursor& cursor, uint64_t alignment,
                          std::vector<GgufTensor>& tensors) {
  const uint64_t data_begin = RoundUp(cursor.position(), alignment);
  std::vector<const GgufTensor*> by_offset;
  for (GgufTensor& tensor : tensors) {
    const auto begin = CheckedAdd(data_begin, tensor.offset);
    const auto end = begin ? CheckedAdd(*begin, tensor.bytes) : std::nullopt;
    if (tensor.offset % alignment != 0) {
      return Damaged(cursor,
                     absl::StrCat("tensor '", tensor.name, "' lies at data offset ", tensor.offset,
                                  ", which is no multiple of the alignment ", alignment));
    }
    if (!end || *end > cursor.size()) {
      return Damaged(
          cursor, absl::StrCat("tensor '", tensor.name, "' of ", tensor.bytes,
                               " bytes at data offset ", tensor.offset, " goes beyond the file's ",
                               cursor.size(), " bytes; is the download complete?"));
    }
    tensor.offset = *begin;
    by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    if (by_offset[i]->offset < by_offset[i - 1]->offset + by_offset[i - 1]->bytes) {
      return Damaged(cursor, absl::StrCat("tensors '", by_offset[i - 1]->name, "' and '",
                                          by_offset[i]->name, "' overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufHeader> ParseGguf(ByteCursor& cursor) {
  ASSIGN_OR_RETURN(const std::string magic, cursor.ReadBytes(4, "the magic number"));
  if (magic != kMagic)
    return absl::InvalidArgumentError(
        absl::StrCat(cursor.where(), " is not a GGUF file (no \"GGUF\" at its start)"));
  ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>("the version"));
  if ((version & 0xffff) == 0) {
    return absl::UnimplementedError(absl::StrCat(
        cursor.where(), " is a big-endian GGUF file; only little-endian is supported"));
  }
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        absl::StrCat(cursor.where(), " has GGUF version ", version, "; supported are 2 and 3"));
  }
  ASSIGN_OR_RETURN(const uint64_t tensor_count, cursor.Read<uint64_t>("the number of tensors"));
  ASSIGN_OR_RETURN(const uint64_t kv_count, cursor.Read<uint64_t>("the number of metadata keys"));
  if (tensor_count > kMaxTensors || tensor_count > cursor.remaining() / kMinTensorBytes) {
    return Damaged(cursor, absl::StrCat("claims ", tensor_count, " tensors, ", kTooMany));
  }
  if (kv_count > cursor.remaining() / kMinKeyValueBytes) {
    return Damaged(cursor, absl::StrCat("claims ", kv_count, " metadata keys, ", kTooMany));
  }
  GgufHeader header{.metadata = GgufMetadata(cursor.where()), .tensors = {}};
  RETURN_IF_ERROR(ReadMetadata(cursor, kv_count, header.metadata));
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(header.metadata));
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, i));
    if (!names.insert(tensor.name).second)
      return Damaged(cursor, absl::StrCat("tensor '", tensor.name, "' appears twice"));
    header.tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(PlaceTensors(cursor, alignment, header.tensors));
  return header;
}

}  // namespace bitshard
