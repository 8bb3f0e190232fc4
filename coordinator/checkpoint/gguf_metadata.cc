// GgufMetadata: typed look-ups in what ParseGguf has read.
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/gguf.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

template <typename T>
T Element(const GgufArray& array, uint64_t index) {
  T value;
  std::memcpy(&value, array.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Any integer as a signed 64-bit number; nullopt for other types and for what does not fit.
std::optional<int64_t> IntegerAt(const GgufArray& array, uint64_t i) {
  switch (array.type) {
    case GgufValueType::kU8:
      return Element<uint8_t>(array, i);
    case GgufValueType::kI8:
      return Element<int8_t>(array, i);
    case GgufValueType::kU16:
      return Element<uint16_t>(array, i);
    case GgufValueType::kI16:
      return Element<int16_t>(array, i);
    case GgufValueType::kU32:
      return Element<uint32_t>(array, i);
    case GgufValueType::kI32:
      return Element<int32_t>(array, i);
    case GgufValueType::kI64:
      return Element<int64_t>(array, i);
    case GgufValueType::kU64: {
      const uint64_t value = Element<uint64_t>(array, i);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<uint64_t> AsUnsigned(const GgufValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value); number != nullptr && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  return std::nullopt;
}

}  // namespace

absl::Status GgufMetadata::Add(std::string key, GgufValue value) {
  const auto [entry, inserted] = values_.try_emplace(std::move(key), std::move(value));
  if (inserted) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(where_, ": metadata key '", entry->first, "' appears twice"));
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

absl::Status GgufMetadata::Wrong(std::string_view key, std::string_view expected) const {
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": metadata '", std::string(key), "' is not ", std::string(expected)));
}

absl::StatusOr<std::optional<uint64_t>> GgufMetadata::Unsigned(std::string_view key,
                                                               uint64_t max) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<uint64_t> number = AsUnsigned(*value);
  if (!number || *number > max) return Wrong(key, absl::StrCat("a whole number from 0 to ", max));
  return number;
}

absl::StatusOr<std::optional<uint64_t>> GgufMetadata::UniformUnsigned(std::string_view key,
                                                                      uint64_t max) const {
  const GgufValue* const value = Find(key);
  const auto* const array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) return Unsigned(key, max);
  std::optional<int64_t> first;
  for (uint64_t i = 0; i < array->count; ++i) {
    const std::optional<int64_t> number = IntegerAt(*array, i);
    if (!number || *number < 0 || static_cast<uint64_t>(*number) > max) {
      return Wrong(key, absl::StrCat("a list of whole numbers from 0 to ", max));
    }
    if (first && *first != *number) {
      return absl::UnimplementedError(
          absl::StrCat(where_, ": metadata '", std::string(key),
                       "' differs between layers, which is not supported"));
    }
    first = number;
  }
  if (!first) return std::nullopt;
  return static_cast<uint64_t>(*first);
}

absl::StatusOr<std::optional<double>> GgufMetadata::Number(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::optional<double> number;
  if (const auto* real = std::get_if<double>(value)) number = *real;
  if (const auto* integer = std::get_if<uint64_t>(value)) number = static_cast<double>(*integer);
  if (const auto* integer = std::get_if<int64_t>(value)) number = static_cast<double>(*integer);
  if (!number || !std::isfinite(*number)) return Wrong(key, "a finite number");
  return number;
}

absl::StatusOr<std::optional<bool>> GgufMetadata::Bool(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return Wrong(key, "a bool");
}

absl::StatusOr<std::optional<std::string>> GgufMetadata::String(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  return Wrong(key, "a string");
}

absl::StatusOr<std::vector<std::string>> GgufMetadata::Strings(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::vector<std::string>();
  const auto* const array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->type != GgufValueType::kString)
    return Wrong(key, "a list of strings");
  return array->strings;
}

absl::StatusOr<std::vector<int32_t>> GgufMetadata::Int32s(std::string_view key) const {
  std::vector<int32_t> numbers;
  const GgufValue* const value = Find(key);
  if (value == nullptr) return numbers;
  const auto* const array = std::get_if<GgufArray>(value);
  if (array == nullptr) return Wrong(key, "a list of numbers");
  numbers.reserve(array->bytes.size() / sizeof(int64_t));
  for (uint64_t i = 0; i < array->count; ++i) {
    const std::optional<int64_t> number = IntegerAt(*array, i);
    if (!number || *number != static_cast<int32_t>(*number))
      return Wrong(key, "a list of 32-bit whole numbers");
    numbers.push_back(static_cast<int32_t>(*number));
  }
  return numbers;
}

absl::StatusOr<std::vector<float>> GgufMetadata::Floats(std::string_view key) const {
  std::vector<float> numbers;
  const GgufValue* const value = Find(key);
  if (value == nullptr) return numbers;
  const auto* const array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->type != GgufValueType::kF32)
    return Wrong(key, "a list of 32-bit floats");
  numbers.resize(array->count);
  if (array->count > 0) std::memcpy(numbers.data(), array->bytes.data(), array->bytes.size());
  return numbers;
}

}  // namespace bitshard
