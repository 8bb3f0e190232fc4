// A whole weight as the files store it, decoded by its format's definition.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "coordinator/checkpoint/tensor_index.h"
#include "kernels/base/check.h"
#include "kernels/formats/format.h"

namespace bitshard {

// `files`: the whole contents of TensorIndex::files().
inline std::vector<float> DecodeStored(const TensorInfo& tensor,
                                       const std::vector<std::string>& files) {
  const WeightFormat* const format = FindFormat(tensor.format);
  CHECK(format != nullptr) << tensor.format;
  std::vector<absl::Span<const uint8_t>> parts;
  for (const TensorPart& part : tensor.parts) {
    const std::string& file = files[part.file];
    CHECK_LE(part.offset + part.bytes, file.size());
    parts.push_back({reinterpret_cast<const uint8_t*>(file.data()) + part.offset, part.bytes});
  }
  std::vector<float> values(tensor.rows * tensor.cols);
  format->Decode(parts, tensor.rows, tensor.cols, values.data());
  return values;
}

}  // namespace bitshard
