// Writes GGUF files for tests, correct ones and, by hand, wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitshard {

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string GgufString(std::string_view text) {
  return LittleEndian<uint64_t>(text.size()) + std::string(text);
}

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  // One metadata entry: type number and value as stored.
  GgufWriter& Raw(std::string_view key, uint32_t type, const std::string& value) {
    metadata_ += GgufString(key) + LittleEndian<uint32_t>(type) + value;
    ++metadata_count_;
    return *this;
  }
  GgufWriter& U32(std::string_view key, uint32_t value) { return Raw(key, 4, LittleEndian(value)); }
  GgufWriter& F32(std::string_view key, float value) { return Raw(key, 6, LittleEndian(value)); }
  GgufWriter& String(std::string_view key, std::string_view value) {
    return Raw(key, 8, GgufString(value));
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = LittleEndian<uint32_t>(8) + LittleEndian<uint64_t>(values.size());
    for (const std::string& value : values) bytes += GgufString(value);
    return Raw(key, 9, bytes);
  }
  GgufWriter& Int32s(std::string_view key, const std::vector<int32_t>& values) {
    std::string bytes = LittleEndian<uint32_t>(5) + LittleEndian<uint64_t>(values.size());
    for (int32_t value : values) bytes += LittleEndian(value);
    return Raw(key, 9, bytes);
  }

  // `dims` as stored, the contiguous one first.
  GgufWriter& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     std::string data) {
    const uint64_t offset = data_.size();
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    return TensorAt(name, dims, type, offset);
  }
  // An entry alone; its data are not checked.
  GgufWriter& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                       uint64_t offset) {
    tensors_ += GgufString(name) + LittleEndian(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) tensors_ += LittleEndian(dim);
    tensors_ += LittleEndian(type) + LittleEndian(offset);
    ++tensor_count_;
    return *this;
  }

  std::string Build() const { return Build(tensor_count_, metadata_count_); }
  // With counts of one's own choice.
  std::string Build(uint64_t tensor_count, uint64_t metadata_count) const {
    std::string file =
        "GGUF" + LittleEndian(version) + LittleEndian(tensor_count) + LittleEndian(metadata_count);
    file += metadata_ + tensors_;
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_;
  }

 private:
  std::string metadata_;
  uint64_t metadata_count_ = 0;
  std::string tensors_;
  uint64_t tensor_count_ = 0;
  std::string data_;
};

}  // namespace bitshard
