#include "tests/worker/tiny_model.h"

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/shard/shard.h"
#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/format.h"
#include "tests/kernels/formats/random_ct.h"
#include "tests/support/stored_weight.h"

namespace bitshard {
namespace {

using internal::Value;

class Maker {
 public:
  explicit Maker(const TinyModelOptions& options) : options_(options), random_(options.seed) {
    static std::atomic<int> next{0};
    model_.path = absl::StrCat(testing::TempDir(), "/tiny-", next.fetch_add(1), ".bin");
  }

  TinyModel Make() {
    internal::ModelGraph& graph = model_.graph;
    graph.set_family("tiny");
    graph.set_hidden_size(options_.hidden);
    graph.set_vocab_size(options_.vocab);
    graph.set_context_length(options_.context);
    graph.set_kv_layers(options_.layers);

    internal::Node& embed = AddNode("embed", {}, options_.hidden, Value::RAW_BITS);
    embed.mutable_embed()->set_weight(Matrix("embed.weight", options_.vocab, options_.hidden));
    uint32_t x = Output();
    for (uint32_t i = 0; i < options_.layers; ++i) x = Layer(absl::StrCat("layers.", i, "."), i, x);
    x = Norm("norm", x);
    internal::Node& head = AddNode("lm_head", {x}, options_.vocab, Value::F32);
    head.mutable_lm_head()->set_weight(Matrix("lm_head.weight", options_.vocab, options_.hidden));
    internal::Node& sample = *graph.add_nodes();
    sample.set_name("sample");
    sample.add_inputs(Output());
    sample.mutable_sample();
    Save();
    model_.index.set_model_digest("tiny");
    return std::move(model_);
  }

 private:
  uint32_t Layer(const std::string& prefix, uint32_t number, uint32_t x) {
    const uint64_t q_width = uint64_t{options_.heads} * options_.head_dim;
    const uint64_t kv_width = uint64_t{options_.kv_heads} * options_.head_dim;
    const uint32_t h = Norm(prefix + "attn_norm", x);
    uint32_t q = Linear(prefix + "q", h, q_width);
    uint32_t k = Linear(prefix + "k", h, kv_width);
    const uint32_t v = Linear(prefix + "v", h, kv_width);
    q = Rope(prefix + "q_rope", q, options_.heads);
    k = Rope(prefix + "k_rope", k, options_.kv_heads);
    internal::Attention& attention =
        *AddNode(prefix + "attention", {q, k, v}, q_width, Value::F32).mutable_attention();
    attention.set_kv_layer(number);
    attention.set_q_heads(options_.heads);
    attention.set_kv_heads(options_.kv_heads);
    attention.set_head_dim(options_.head_dim);
    attention.set_scale(1 / std::sqrt(static_cast<float>(options_.head_dim)));
    for (uint32_t head = 0; head < options_.heads; ++head) {
      attention.add_kv_head_of_q(head / (options_.heads / options_.kv_heads));
    }
    x = Add(prefix + "attn_add", x,
            RowParallel(prefix + "o", Output(), q_width, options_.head_dim, false));
    const uint32_t m = Norm(prefix + "mlp_norm", x);
    const uint32_t gate = Linear(prefix + "gate", m, options_.mlp, /*bias=*/false);
    const uint32_t up = Linear(prefix + "up", m, options_.mlp, /*bias=*/false);
    AddNode(prefix + "act", {gate, up}, options_.mlp, Value::F32)
        .mutable_gated_act()
        ->set_activation(internal::GatedAct::SILU);
    return Add(prefix + "mlp_add", x,
               RowParallel(prefix + "down", Output(), options_.mlp, 64, options_.bias));
  }

  uint32_t Norm(const std::string& name, uint32_t x) {
    internal::RmsNorm& norm = *AddNode(name, {x}, options_.hidden, Value::F32).mutable_rms_norm();
    norm.set_weight(Vector(name + ".weight", options_.hidden));
    norm.set_epsilon(1e-5f);
    return Output();
  }

  uint32_t Linear(const std::string& name, uint32_t x, uint64_t rows, bool bias = true) {
    internal::Linear& linear = *AddNode(name, {x}, rows, Value::F32).mutable_linear();
    linear.set_weight(Matrix(name + ".weight", rows, options_.hidden));
    if (bias && options_.bias) linear.set_bias(Vector(name + ".bias", rows));
    return Output();
  }

  uint32_t RowParallel(const std::string& name, uint32_t x, uint64_t cols, uint64_t segment_cols,
                       bool bias) {
    internal::Linear& linear =
        *AddNode(name, {x}, options_.hidden, Value::SEGMENT_SUM).mutable_linear();
    linear.set_weight(Matrix(name + ".weight", options_.hidden, cols));
    if (bias) linear.set_bias(Vector(name + ".bias", options_.hidden));
    linear.set_segment_cols(segment_cols);
    linear.set_segments_total((cols + segment_cols - 1) / segment_cols);
    return Output();
  }

  uint32_t Rope(const std::string& name, uint32_t x, uint32_t heads) {
    internal::Rope& rope =
        *AddNode(name, {x}, uint64_t{heads} * options_.head_dim, Value::F32).mutable_rope();
    rope.set_heads(heads);
    rope.set_head_dim(options_.head_dim);
    rope.set_rotary_dim(options_.head_dim);
    rope.set_pairing(internal::Rope::HALVES);
    rope.set_theta(10000);
    return Output();
  }

  uint32_t Add(const std::string& name, uint32_t a, uint32_t b) {
    AddNode(name, {a, b}, options_.hidden, Value::F32).mutable_residual_add();
    return Output();
  }

  internal::Node& AddNode(const std::string& name, std::vector<uint32_t> inputs, uint64_t width,
                          Value::Type type) {
    Value& value = *model_.graph.add_values();
    value.set_width(width);
    value.set_type(type);
    internal::Node& node = *model_.graph.add_nodes();
    node.set_name(name);
    for (const uint32_t input : inputs) node.add_inputs(input);
    node.add_outputs(Output());
    return node;
  }
  uint32_t Output() const { return static_cast<uint32_t>(model_.graph.values_size()) - 1; }

  uint32_t Vector(const std::string& name, uint64_t cols) {
    return AddWeight(name, "f32", 1, cols);
  }
  uint32_t Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    return AddWeight(name, options_.format, rows, cols);
  }

  uint32_t AddWeight(const std::string& name, const std::string& format, uint64_t rows,
                     uint64_t cols) {
    internal::Weight& weight = *model_.graph.add_weights();
    weight.set_name(name);
    weight.set_format(format);
    weight.set_rows(rows);
    weight.set_cols(cols);

    bytes_.resize((bytes_.size() + 31) / 32 * 32);
    TensorInfo info;
    info.name = name;
    info.format = format;
    info.shape = rows == 1 ? std::vector<uint64_t>{cols} : std::vector<uint64_t>{rows, cols};
    info.rows = rows;
    info.cols = cols;
    const float spread = rows == 1 ? 0.5f : 0.15f;
    TensorPart part{.source_name = "file." + name, .offset = bytes_.size()};
    if (format.rfind("ct_int", 0) == 0) {
      for (const std::string& bytes : RandomCtParts(format, rows, cols, random_, spread)) {
        info.parts.push_back({.source_name = absl::StrCat("file.", name, ".", info.parts.size()),
                              .offset = bytes_.size(),
                              .bytes = bytes.size()});
        bytes_ += bytes;
      }
    } else {
      for (uint64_t i = 0; i < rows; ++i) AddRow(format, cols, spread);
      part.bytes = bytes_.size() - part.offset;
      info.parts = {part};
    }
    tensors_.push_back(info);
    return static_cast<uint32_t>(model_.graph.weights_size()) - 1;
  }

  void AddRow(const std::string& format, uint64_t cols, float spread) {
    std::normal_distribution<float> normal(0, spread);
    if (format == "q4_1" || format == "q8_0") {
      for (uint64_t block = 0; block < cols / 32; ++block) AddBlock(format, spread);
      CHECK_EQ(cols % 32, 0u);
      return;
    }
    for (uint64_t i = 0; i < cols; ++i) {
      const float value = normal(random_);
      if (format == "f32") {
        Append(&value, sizeof(value));
      } else {
        const uint16_t bits = format == "f16" ? F32ToF16(value) : F32ToBf16(value);
        Append(&bits, sizeof(bits));
      }
    }
  }

  void AddBlock(const std::string& format, float spread) {
    const bool q4 = format == "q4_1";
    const uint16_t scale = F32ToF16(spread * (q4 ? 0.25f : 0.015f));
    const uint16_t min = F32ToF16(-spread * 2);
    Append(&scale, sizeof(scale));
    if (q4) Append(&min, sizeof(min));
    for (int i = 0; i < (q4 ? 16 : 32); ++i) bytes_.push_back(static_cast<char>(random_() & 0xff));
  }

  void Append(const void* data, size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }

  void Save() {
    std::ofstream out(model_.path, std::ios::binary);
    out.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    CHECK(out.good());
    const uint32_t file = model_.index.AddFile({model_.path, bytes_.size()});
    for (TensorInfo& tensor : tensors_) {
      for (TensorPart& part : tensor.parts) part.file = file;
      CHECK_OK(model_.index.Add(std::move(tensor)));
    }
  }

  const TinyModelOptions options_;
  std::mt19937_64 random_;
  TinyModel model_;
  std::string bytes_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

TinyModel MakeTinyModel(const TinyModelOptions& options) { return Maker(options).Make(); }

std::vector<internal::RankPlan> CutTinyModel(const TinyModel& model, int world) {
  auto plans =
      ShardModel(model.graph, model.index, std::vector<double>(static_cast<size_t>(world), 1.0));
  CHECK_OK(plans.status());
  return *std::move(plans);
}

std::vector<float> DecodeTensor(const TinyModel& model, const std::string& name) {
  const TensorInfo* info = model.index.Find(name);
  CHECK(info != nullptr) << name;
  std::ifstream in(model.path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  CHECK(in.good());
  return DecodeStored(*info, {bytes.str()});
}

}  // namespace bitshard
