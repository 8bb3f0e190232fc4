// A hand-made model of two layers in one file of the test's folder, cut by the real planner: input
// for tests of loading and stepping that want every number in their own hands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/checkpoint/tensor_index.h"
#include "proto/graph.pb.h"

namespace bitshard {

struct TinyModelOptions {
  std::string format = "f32";  // of all matrices: f32, f16, bf16, q8_0, q4_1, ct_int*
  uint64_t vocab = 200;        // not a multiple of 64
  uint64_t hidden = 64;
  uint32_t heads = 6;
  uint32_t kv_heads = 3;
  uint32_t head_dim = 32;
  uint64_t mlp = 160;  // two shard units and a half
  uint32_t layers = 2;
  uint64_t context = 256;
  bool bias = true;  // q, k, v and down_proj
  uint64_t seed = 1;
};

struct TinyModel {
  internal::ModelGraph graph;  // uncut
  TensorIndex index;
  std::string path;  // of the weights
};

// Writes the weights to a new file in the test's temporary folder.
TinyModel MakeTinyModel(const TinyModelOptions& options = {});

// One plan a rank, by ShardModel with equal shares.
std::vector<internal::RankPlan> CutTinyModel(const TinyModel& model, int world);

// The whole tensor as f32, from the file, by the format's own definition.
std::vector<float> DecodeTensor(const TinyModel& model, const std::string& name);

}  // namespace bitshard
