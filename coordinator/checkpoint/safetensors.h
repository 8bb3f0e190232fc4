// safetensors: the header of one file, and the files of one folder.
//
// A file is u64 n (little-endian), n bytes of JSON, data. JSON: {"name": {"dtype": "BF16", "shape":
// [..], "data_offsets": [begin, end]}, ..., "__metadata__": {..}}; offsets count from the start of
// the data; rows in C order. (github.com/huggingface/safetensors, "Format")
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    std::string format;  // dtype in lower case: "bf16", "f8_e4m3"
    std::vector<uint64_t> shape;
    uint64_t begin = 0;  // in the data section
    uint64_t end = 0;
  };
  std::vector<Entry> entries;  // in the order of the data
  std::map<std::string, std::string> metadata;
};

// `json`: the header's text; `data_bytes`: size of the data section after it. `where` names the
// file in messages.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes,
                                                         const std::string& where);

// `folder` is a real path (no links in it). Adds all tensors of the folder's model:
// model.safetensors.index.json, else model.safetensors, else every *.safetensors.
absl::Status IndexSafetensorsFolder(const std::string& folder, TensorIndex& index);

}  // namespace bitshard
