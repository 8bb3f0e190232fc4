#include "coordinator/checkpoint/model_digest.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/checkpoint/input_file.h"
#include "coordinator/checkpoint/sha256.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint64_t kSampleBytes = 512;
constexpr uint64_t kSampledParts = 2048;

void AddNumber(double number, Sha256& sha) { sha.AddField(std::bit_cast<uint64_t>(number)); }

void AddRope(const RopeConfig& rope, Sha256& sha) {
  AddNumber(rope.theta, sha);
  sha.AddField(rope.rotary_dim);
  sha.AddField(static_cast<uint64_t>(rope.pairing));
  sha.AddField(rope.scaling.index());
  std::visit(
      [&sha](const auto& s) {
        using Scaling = std::remove_cvref_t<decltype(s)>;
        if constexpr (std::is_same_v<Scaling, RopeConfig::Linear>) {
          AddNumber(s.factor, sha);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Llama3>) {
          for (double v : {s.factor, s.low_freq_factor, s.high_freq_factor, s.original_context})
            AddNumber(v, sha);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Yarn>) {
          for (double v :
               {s.factor, s.original_context, s.beta_fast, s.beta_slow, s.attention_factor})
            AddNumber(v, sha);
          sha.AddField(s.truncate);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Divisors>) {
          sha.AddField(std::string_view(s.tensor));
        }
      },
      rope.scaling);
}

void AddConfig(const ModelConfig& c, Sha256& sha) {
  sha.AddField(std::string_view(c.architecture));
  sha.AddField(std::string_view(c.activation));
  for (uint64_t v : {c.hidden_size, c.intermediate_size, c.vocab_size, c.context_length,
                     c.sliding_window, c.experts}) {
    sha.AddField(v);
  }
  for (uint32_t v : {c.layers, c.heads, c.kv_heads, c.head_dim}) sha.AddField(v);
  for (bool v : {c.tied_embeddings, c.attention_bias, c.attention_output_bias, c.mlp_bias})
    sha.AddField(v);
  AddNumber(c.rms_norm_epsilon, sha);
  AddRope(c.rope, sha);
}

void AddIndex(const TensorIndex& index, Sha256& sha) {
  for (const CheckpointFile& file : index.files()) {
    sha.AddField(std::string_view(file.path).substr(file.path.rfind('/') + 1));
    sha.AddField(file.size_bytes);
  }
  for (const TensorInfo& tensor : index.tensors()) {
    sha.AddField(std::string_view(tensor.name));
    sha.AddField(std::string_view(tensor.format));
    sha.AddField(tensor.shape.size());
    for (uint64_t dimension : tensor.shape) sha.AddField(dimension);
    sha.AddField(tensor.parts.size());
    for (const TensorPart& part : tensor.parts) {
      sha.AddField(std::string_view(part.source_name));
      sha.AddField(part.file);
      sha.AddField(part.offset);
      sha.AddField(part.bytes);
    }
  }
}

absl::Status AddWeightSamples(const TensorIndex& index, Sha256& sha) {
  std::vector<InputFile> files;
  for (const CheckpointFile& file : index.files()) {
    ASSIGN_OR_RETURN(InputFile opened, InputFile::Open(file.path));
    files.push_back(std::move(opened));
  }
  std::vector<const TensorPart*> parts;
  for (const TensorInfo& tensor : index.tensors()) {
    for (const TensorPart& part : tensor.parts) parts.push_back(&part);
  }
  const size_t stride = CeilDiv(std::max<size_t>(parts.size(), 1), kSampledParts);
  for (size_t i = 0; i < parts.size(); i += stride) {
    const TensorPart& part = *parts[i];
    const uint64_t piece = std::min(part.bytes, kSampleBytes);
    const uint64_t last = part.bytes - piece;
    for (const uint64_t at : {uint64_t{0}, last / 2, last}) {
      ASSIGN_OR_RETURN(const std::string bytes, files[part.file].ReadAt(part.offset + at, piece));
      sha.AddField(std::string_view(bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string IndexDigest(const ModelConfig& config, const TensorIndex& index) {
  Sha256 sha;
  AddConfig(config, sha);
  AddIndex(index, sha);
  return sha.HexDigest();
}

absl::StatusOr<std::string> ModelDigest(const ModelConfig& config, const TensorIndex& index) {
  Sha256 sha;
  AddConfig(config, sha);
  AddIndex(index, sha);
  RETURN_IF_ERROR(AddWeightSamples(index, sha));
  return sha.HexDigest();
}

}  // namespace bitshard
