#include "coordinator/models/graph_builder.h"

#include <cmath>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/checked_math.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

std::string ShapeText(const TensorInfo& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
}

bool IsVector(const TensorInfo& tensor, uint64_t cols) {
  return tensor.shape.size() <= 1 && tensor.cols == cols;
}

bool IsMatrix(const TensorInfo& tensor, uint64_t rows, uint64_t cols) {
  return tensor.shape.size() == 2 && tensor.rows == rows && tensor.cols == cols;
}

bool HasAllParts(const TensorInfo& tensor, const WeightFormat& format, uint64_t rows,
                 uint64_t cols) {
  if (tensor.parts.size() != format.part_count()) return false;
  for (size_t i = 0; i < tensor.parts.size(); ++i) {
    const auto shape = format.ShapeOfPart(i, rows, cols);
    if (!shape.ok() || CheckedMul(shape->rows, shape->row_bytes) != tensor.parts[i].bytes)
      return false;
  }
  return true;
}

}  // namespace

GraphBuilder::GraphBuilder(const TensorIndex& index, InventTensorFn invent)
    : index_(index), invent_(std::move(invent)) {}

void GraphBuilder::OpenScope(std::string prefix, std::string label) {
  prefix_ = std::move(prefix);
  label_ = std::move(label);
}

void GraphBuilder::Layer(std::string_view prefix, uint32_t number) {
  const std::string tensors(prefix);
  OpenScope(absl::StrCat(tensors, ".", number),
            absl::StrCat(tensors.substr(tensors.rfind('.') + 1), ".", number));
}

std::string GraphBuilder::Tensor(std::string_view name, std::string_view suffix) const {
  const std::string own = std::string(name) + std::string(suffix);
  return prefix_.empty() ? own : absl::StrCat(prefix_, ".", own);
}

void GraphBuilder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

uint64_t GraphBuilder::Width(Value value) const {
  return value.id < static_cast<uint32_t>(graph_.values_size())
             ? graph_.values(static_cast<int>(value.id)).width()
             : 0;
}

uint32_t GraphBuilder::AddWeight(const std::string& name, uint64_t rows, uint64_t cols,
                                 bool vector) {
  if (!status_.ok()) return 0;
  if (invent_ != nullptr && index_.Find(name) == nullptr) {
    Fail(invent_(name, rows, cols, vector));
    if (!status_.ok()) return 0;
  }
  const TensorInfo* const tensor = index_.Find(name);
  if (tensor == nullptr) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' is missing in the checkpoint")));
    return 0;
  }
  const std::string where =
      absl::StrCat(index_.PathOf(*tensor), ": tensor '", tensor->source_name(), "'");
  const std::string wanted =
      vector ? absl::StrCat("[", cols, "]") : absl::StrCat("[", rows, ", ", cols, "]");
  if (vector ? !IsVector(*tensor, cols) : !IsMatrix(*tensor, rows, cols)) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(where, " has shape ", ShapeText(*tensor), " but the config wants ", wanted)));
    return 0;
  }
  const auto format = GetFormat(tensor->format);
  if (!format.ok()) {
    Fail(absl::UnimplementedError(absl::StrCat(where, ": ", format.status().message())));
    return 0;
  }
  if (!HasAllParts(*tensor, **format, rows, cols)) {
    Fail(absl::InvalidArgumentError(absl::StrCat(where, " has ", tensor->bytes(),
                                                 " bytes, which is not ", wanted, " in format ",
                                                 tensor->format)));
    return 0;
  }
  if (vector && (*format)->part_count() != 1) {
    Fail(absl::UnimplementedError(
        absl::StrCat(where, " is a vector in format ", tensor->format, "; must be unquantized")));
    return 0;
  }
  const auto [known, is_new] = weight_ids_.try_emplace(name, graph_.weights_size());
  if (is_new) {
    internal::Weight* const weight = graph_.add_weights();
    weight->set_name(name);
    weight->set_format(tensor->format);
    weight->set_rows(rows);
    weight->set_cols(cols);
  }
  return known->second;
}

uint32_t GraphBuilder::Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
  return AddWeight(name, rows, cols, /*vector=*/false);
}

uint32_t GraphBuilder::Vector(const std::string& name, uint64_t cols) {
  return AddWeight(name, 1, cols, /*vector=*/true);
}

GraphBuilder::Value GraphBuilder::AddValue(uint64_t width, internal::Value::Type type) {
  internal::Value* const value = graph_.add_values();
  value->set_width(width);
  value->set_type(type);
  return {static_cast<uint32_t>(graph_.values_size() - 1)};
}

internal::Node* GraphBuilder::AddNode(std::string_view label, std::initializer_list<Value> inputs,
                                      std::initializer_list<Value> outputs) {
  internal::Node* const node = graph_.add_nodes();
  node->set_name(label_.empty() ? std::string(label)
                                : absl::StrCat(label_, ".", std::string(label)));
  for (Value value : inputs) node->add_inputs(value.id);
  for (Value value : outputs) node->add_outputs(value.id);
  return node;
}

GraphBuilder::Value GraphBuilder::Embed(std::string_view tensor, uint64_t vocab_size,
                                        uint64_t hidden_size) {
  const uint32_t weight = Matrix(Tensor(tensor, ".weight"), vocab_size, hidden_size);
  const Value y = AddValue(hidden_size, internal::Value::RAW_BITS);
  AddNode(tensor, {}, {y})->mutable_embed()->set_weight(weight);
  return y;
}

GraphBuilder::Value GraphBuilder::RmsNorm(Value x, std::string_view tensor, double epsilon) {
  const uint32_t weight = Vector(Tensor(tensor, ".weight"), Width(x));
  const Value y = AddValue(Width(x), internal::Value::F32);
  internal::RmsNorm* const norm = AddNode(tensor, {x}, {y})->mutable_rms_norm();
  norm->set_weight(weight);
  norm->set_epsilon(static_cast<float>(epsilon));
  return y;
}

GraphBuilder::Value GraphBuilder::Linear(Value x, std::string_view tensor, uint64_t rows,
                                         bool bias) {
  const uint64_t cols = Width(x);
  const uint32_t weight = Matrix(Tensor(tensor, ".weight"), rows, cols);
  const std::string bias_name = Tensor(tensor, ".bias");
  if (!bias && index_.Find(bias_name) != nullptr) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("the checkpoint has '", bias_name, "' but its config says no bias")));
  }
  const Value y = AddValue(rows, internal::Value::F32);
  internal::Linear* const linear = AddNode(tensor, {x}, {y})->mutable_linear();
  linear->set_weight(weight);
  if (bias) linear->set_bias(Vector(bias_name, rows));
  return y;
}

GraphBuilder::Value GraphBuilder::RowParallelLinear(Value x, std::string_view tensor, uint64_t rows,
                                                    uint64_t segment_cols, bool bias) {
  const Value y = Linear(x, tensor, rows, bias);
  graph_.mutable_values(static_cast<int>(y.id))->set_type(internal::Value::SEGMENT_SUM);
  internal::Linear* const linear = graph_.mutable_nodes(graph_.nodes_size() - 1)->mutable_linear();
  linear->set_segment_cols(segment_cols);
  linear->set_segments_total(CeilDiv(Width(x), segment_cols));
  return y;
}

GraphBuilder::Value GraphBuilder::Rope(Value x, std::string_view label, const RopeConfig& rope,
                                       uint32_t heads, uint32_t head_dim) {
  const Value y = AddValue(Width(x), internal::Value::F32);
  internal::Rope* const node = AddNode(label, {x}, {y})->mutable_rope();
  node->set_heads(heads);
  node->set_head_dim(head_dim);
  node->set_rotary_dim(rope.rotary_dim);
  node->set_pairing(rope.pairing == RopeConfig::Pairing::kHalves ? internal::Rope::HALVES
                                                                 : internal::Rope::INTERLEAVED);
  node->set_theta(rope.theta);
  std::visit(
      [&](const auto& s) {
        using Scaling = std::remove_cvref_t<decltype(s)>;
        if constexpr (std::is_same_v<Scaling, RopeConfig::Linear>) {
          node->mutable_linear()->set_factor(s.factor);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Llama3>) {
          internal::Rope::Llama3* const llama3 = node->mutable_llama3();
          llama3->set_factor(s.factor);
          llama3->set_low_freq_factor(s.low_freq_factor);
          llama3->set_high_freq_factor(s.high_freq_factor);
          llama3->set_original_context(s.original_context);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Yarn>) {
          internal::Rope::Yarn* const yarn = node->mutable_yarn();
          yarn->set_factor(s.factor);
          yarn->set_original_context(s.original_context);
          yarn->set_beta_fast(s.beta_fast);
          yarn->set_beta_slow(s.beta_slow);
          yarn->set_truncate(s.truncate);
          yarn->set_attention_factor(s.attention_factor);
        } else if constexpr (std::is_same_v<Scaling, RopeConfig::Divisors>) {
          node->set_divisors_weight(Vector(s.tensor, rope.rotary_dim / 2));
        }
      },
      rope.scaling);
  return y;
}

GraphBuilder::Value GraphBuilder::Attention(Value q, Value k, Value v,
                                            const AttentionShape& shape) {
  const Value y = AddValue(Width(q), internal::Value::F32);
  internal::Attention* const node =
      AddNode("self_attn.attention", {q, k, v}, {y})->mutable_attention();
  node->set_kv_layer(graph_.kv_layers());
  graph_.set_kv_layers(graph_.kv_layers() + 1);
  node->set_q_heads(shape.heads);
  node->set_kv_heads(shape.kv_heads);
  node->set_head_dim(shape.head_dim);
  node->set_scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))));
  for (uint32_t head = 0; head < shape.heads; ++head) {
    node->add_kv_head_of_q(static_cast<uint32_t>(uint64_t{head} * shape.kv_heads / shape.heads));
  }
  node->set_window(static_cast<uint32_t>(shape.window));
  return y;
}

GraphBuilder::Value GraphBuilder::GatedAct(Value gate, Value up,
                                           internal::GatedAct::Activation activation) {
  const Value y = AddValue(Width(gate), internal::Value::F32);
  AddNode("mlp.gated_act", {gate, up}, {y})->mutable_gated_act()->set_activation(activation);
  return y;
}

GraphBuilder::Value GraphBuilder::Add(Value a, Value b, std::string_view label) {
  const Value y = AddValue(Width(a), internal::Value::F32);
  AddNode(label, {a, b}, {y})->mutable_residual_add();
  return y;
}

void GraphBuilder::LmHead(Value x, std::string_view tensor, uint64_t vocab_size) {
  const uint32_t weight = Matrix(Tensor(tensor, ".weight"), vocab_size, Width(x));
  const Value logits = AddValue(vocab_size, internal::Value::F32);
  AddNode("lm_head", {x}, {logits})->mutable_lm_head()->set_weight(weight);
  AddNode("sample", {logits}, {})->mutable_sample();
}

}  // namespace bitshard
