// A model without weights: its config, the format that its matrices would have, and a seed. Spelled
// as one word, so that it stands wherever the path of a checkpoint may:
//
//   synthetic:OPTIONS:CONFIG     synthetic:bits=4,group=128,shard=0/8:llama-3.1-70b
//
// CONFIG: a Hugging Face config.json, a folder that has one, or a name of shapes.h. OPTIONS, with
// commas between them, none of which must be there:
//   bits=N      2 to 8: all layers' matrices as compressed-tensors of so many bits, embedding and
//               head unquantized; 16: nothing quantized. Without it the config says (its
//               quantization_config, else nothing is).
//   group=N     columns of a scale group (128); 0: one scale a row. With bits=2 to 8.
//   asym        with zero points. With bits=2 to 8.
//   format=NAME instead of bits, group and asym: all layers' matrices in a format of
//   kernels/formats
//               (q4_k, "ct_int4 group=32 scale=f16 asym"), embedding and head unquantized.
//   shard=I/N   only the part that rank I of N equal ranks would own, as a model of its own.
//   seed=N      (1)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace bitshard {

struct SyntheticModel {
  static constexpr int kUnquantized = 16;

  std::string config;
  int bits = 0;  // 0: as the config says
  uint32_t group = 128;
  bool symmetric = true;
  std::string format;  // empty: bits or the config says
  uint32_t shard = 0, shards = 1;
  uint64_t seed = 1;

  bool quantizes() const { return bits != 0 && bits != kUnquantized; }
  // For people: "synthetic weights of 4 bits, groups of 128; rank 0's share of 8".
  std::string Describe() const;
};

// Whether a model's path is one.
bool IsSyntheticModel(std::string_view model);

// INVALID_ARGUMENT names the option, and what it takes.
absl::StatusOr<SyntheticModel> ParseSyntheticModel(std::string_view model);
// What ParseSyntheticModel reads.
std::string Spelled(const SyntheticModel& model);

// "3/8" into `shard` and `shards`. What messages name is spelled with `prefix`: "--synthetic-".
absl::Status ParseShard(std::string_view text, SyntheticModel& model, std::string_view prefix = "");
// Whether the numbers are in their ranges.
absl::Status CheckSyntheticModel(const SyntheticModel& model, std::string_view prefix = "");

}  // namespace bitshard
