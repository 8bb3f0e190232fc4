// Writes safetensors files for tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/coordinator/checkpoint/gguf_writer.h"

namespace bitshard {

struct StoredTensor {
  std::string dtype;  // "BF16", "I32"
  std::vector<uint64_t> shape;
  std::string bytes;
};

using StoredTensors = std::map<std::string, StoredTensor>;

inline std::string SafetensorsFile(const StoredTensors& tensors) {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i)
      header += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  return LittleEndian<uint64_t>(header.size()) + header + data;
}

}  // namespace bitshard
