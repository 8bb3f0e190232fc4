// What tensors a checkpoint holds and where their bytes lie: the headers' content, never the
// weights.
//
// Built once when a checkpoint is opened and constant from then on. Names are canonical (Hugging
// Face style), whatever the container calls them; shapes are row-major, outermost first. A tensor
// is stored in one part, or in several where a quantized form keeps codes, scales and zero points
// apart. Every part has been validated against its file: [offset, offset + bytes) lies inside it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace bitshard {

// A run of bytes in a file.
struct TensorPart {
  std::string source_name;  // as the file calls it: "blk.0.attn_q.weight"
  uint32_t file = 0;        // index in TensorIndex::files()
  uint64_t offset = 0;      // absolute in the file
  uint64_t bytes = 0;
};

struct TensorInfo {
  std::string name;    // canonical: "model.layers.0.self_attn.q_proj.weight"
  std::string format;  // "bf16", "q4_1" (loadable: kernels/formats has it), "iq4_nl", "i64" (not)
  std::vector<uint64_t> shape;
  uint64_t rows = 0;  // product of all dimensions but the last; 1 for vectors and scalars
  uint64_t cols = 0;  // last dimension; 1 for scalars
  std::vector<TensorPart> parts;  // at least one, in the order of the format's parts

  uint64_t bytes() const;  // of all parts
  // For people: the one part's name; of several the canonical name, from which theirs are made.
  const std::string& source_name() const { return parts.size() == 1 ? parts[0].source_name : name; }
};

struct CheckpointFile {
  std::string path;  // absolute
  uint64_t size_bytes = 0;
};

class TensorIndex {
 public:
  // Returns the file's index.
  uint32_t AddFile(CheckpointFile file);
  // DATA_LOSS when a tensor of this canonical name is there already. REQUIRES: the parts' files
  // have been added.
  absl::Status Add(TensorInfo tensor);
  void AddMetadata(std::string key, std::string value) {
    metadata_[std::move(key)] = std::move(value);
  }
  void set_model_digest(std::string hex) { model_digest_ = std::move(hex); }
  // No file holds the weights: workers make them of this seed. Files and parts are then names and
  // sizes for messages and reports (coordinator/synthetic).
  void set_synthetic_seed(uint64_t seed) { synthetic_seed_ = seed; }
  std::optional<uint64_t> synthetic_seed() const { return synthetic_seed_; }

  const std::vector<CheckpointFile>& files() const { return files_; }
  // In the order of the containers.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Null when there is none. Valid until the next Add.
  const TensorInfo* Find(std::string_view name) const;
  // The file of a tensor's first part, for messages.
  const std::string& PathOf(const TensorInfo& tensor) const {
    return files_[tensor.parts.front().file].path;
  }
  // The containers' own short strings, for people: safetensors __metadata__, GGUF scalars.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // See model_digest.h. Empty until OpenCheckpoint has set it.
  const std::string& model_digest() const { return model_digest_; }

 private:
  std::vector<CheckpointFile> files_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  std::string model_digest_;
  std::optional<uint64_t> synthetic_seed_;
};

}  // namespace bitshard
