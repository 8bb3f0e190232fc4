// The words in which a model family says what it computes. Each call checks the tensors it names
// against the checkpoint and appends nodes to the graph, in execution order.
//
// The first error sticks: later calls do nothing, so that a family reads like the paper and checks
// once, at the end. Tensor names are given without ".weight" / ".bias", relative to the open scope
// (Layer). Owned by the one function that builds the graph.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"
#include "proto/graph.pb.h"

namespace bitshard {

// Columns of the MLP that are summed alone, and at whose multiples it may be cut: the same for all
// families, for it fixes the order of summation.
inline constexpr uint64_t kMlpSegmentCols = 64;

// Where there is no checkpoint (coordinator/synthetic): called with each weight that a family asks
// for, before it is looked up, so that the index has it.
using InventTensorFn = std::function<absl::Status(const std::string& name, uint64_t rows,
                                                  uint64_t cols, bool is_vector)>;

class GraphBuilder {
 public:
  // An activation [tokens, width] of the graph.
  struct Value {
    uint32_t id = 0;
  };

  struct AttentionShape {
    uint32_t heads = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint64_t window = 0;  // keys visible to a query; 0 = all
  };

  explicit GraphBuilder(const TensorIndex& index, InventTensorFn invent = nullptr);

  // Names what follows: tensors are looked up under `prefix`, nodes are called `label`.
  void OpenScope(std::string prefix, std::string label);
  // "model.layers" and 3: tensors "model.layers.3.*", nodes "layers.3.*".
  void Layer(std::string_view prefix, uint32_t number);

  Value Embed(std::string_view tensor, uint64_t vocab_size, uint64_t hidden_size);
  Value RmsNorm(Value x, std::string_view tensor, double epsilon);
  // [rows, width of x]. With `bias` the tensor must be there, without it must not.
  Value Linear(Value x, std::string_view tensor, uint64_t rows, bool bias);
  // The same, but x may be spread over ranks: K is a run of segments of `segment_cols` columns,
  // each summed alone, and the sums are exact in any order (SEGMENT_SUM).
  Value RowParallelLinear(Value x, std::string_view tensor, uint64_t rows, uint64_t segment_cols,
                          bool bias);
  Value Rope(Value x, std::string_view label, const RopeConfig& rope, uint32_t heads,
             uint32_t head_dim);
  Value Attention(Value q, Value k, Value v, const AttentionShape& shape);
  Value GatedAct(Value gate, Value up, internal::GatedAct::Activation activation);
  Value Add(Value a, Value b, std::string_view label);
  // Logits and the sampling of a token; the last call. `tensor` may be one that Embed has used
  // (tied embeddings).
  void LmHead(Value x, std::string_view tensor, uint64_t vocab_size);

  const absl::Status& status() const { return status_; }
  internal::ModelGraph& graph() { return graph_; }

 private:
  std::string Tensor(std::string_view name, std::string_view suffix) const;
  // The weight's number in the graph; a tensor that is used twice is one weight.
  uint32_t Matrix(const std::string& name, uint64_t rows, uint64_t cols);
  uint32_t Vector(const std::string& name, uint64_t cols);
  uint32_t AddWeight(const std::string& name, uint64_t rows, uint64_t cols, bool vector);
  Value AddValue(uint64_t width, internal::Value::Type type);
  internal::Node* AddNode(std::string_view label, std::initializer_list<Value> inputs,
                          std::initializer_list<Value> outputs);
  uint64_t Width(Value value) const;
  void Fail(absl::Status status);

  const TensorIndex& index_;
  const InventTensorFn invent_;  // may be null
  internal::ModelGraph graph_;
  std::map<std::string, uint32_t> weight_ids_;
  std::string prefix_;
  std::string label_;
  absl::Status status_;
};

}  // namespace bitshard
