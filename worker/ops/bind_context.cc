#include "worker/ops/bind_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Of one prepared value in all its forms: f32, q, hi, lo, a8, and what there is a group; rounded
// up.
constexpr uint64_t kPreparedBytes = 10;

bool Same(const KvLayout& a, const KvLayout& b) {
  return a.type == b.type && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

bool Same(const AttentionConfig& a, const AttentionConfig& b) {
  return Same(a.layout, b.layout) && a.q_heads == b.q_heads && a.kv_head_of_q == b.kv_head_of_q &&
         a.scale == b.scale && a.window == b.window;
}

bool SameScaling(const RopeConfig& a, const RopeConfig& b) {
  if (a.scaling.index() != b.scaling.index()) return false;
  if (const auto* x = std::get_if<RopeConfig::Linear>(&a.scaling)) {
    return x->factor == std::get<RopeConfig::Linear>(b.scaling).factor;
  }
  if (const auto* x = std::get_if<RopeConfig::Llama3>(&a.scaling)) {
    const auto& y = std::get<RopeConfig::Llama3>(b.scaling);
    return x->factor == y.factor && x->low_freq_factor == y.low_freq_factor &&
           x->high_freq_factor == y.high_freq_factor && x->original_context == y.original_context;
  }
  if (const auto* x = std::get_if<RopeConfig::Yarn>(&a.scaling)) {
    const auto& y = std::get<RopeConfig::Yarn>(b.scaling);
    return x->factor == y.factor && x->original_context == y.original_context &&
           x->beta_fast == y.beta_fast && x->beta_slow == y.beta_slow &&
           x->truncate == y.truncate && x->attention_factor == y.attention_factor;
  }
  return true;
}

bool Same(const RopeConfig& a, const RopeConfig& b) {
  return a.head_dim == b.head_dim && a.rotary_dim == b.rotary_dim && a.pairing == b.pairing &&
         a.theta == b.theta && a.divisors == b.divisors && a.max_positions == b.max_positions &&
         SameScaling(a, b);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BindContext>> BindContext::Create(
    const internal::ModelGraph& graph, const std::vector<PackedMatrix>& matrices,
    const std::vector<std::vector<float>>& vectors, const Options& options) {
  auto context = std::unique_ptr<BindContext>(new BindContext(graph, matrices, vectors, options));
  RETURN_IF_ERROR(context->PlanValues(static_cast<uint64_t>(options.max_step_tokens),
                                      static_cast<uint64_t>(options.max_outputs)));
  if (matrices.size() != vectors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("loaded are ", matrices.size(), " matrices and ", vectors.size(), " vectors"));
  }
  RETURN_IF_ERROR(context->Claim(context->arena_bytes()));
  context->arena_ = Buffer(context->arena_bytes(), MemoryPart::kWorkspace);
  context->set_arena(context->arena_.data());
  return context;
}

absl::StatusOr<const PackedMatrix*> BindContext::Matrix(uint32_t weight) const {
  int64_t rows = 0, cols = 0;
  RETURN_IF_ERROR(MatrixShape(weight, &rows, &cols));
  if (rows == 0 || cols == 0) return nullptr;
  const PackedMatrix& matrix = matrices_[weight];
  if (matrix.rows() != rows || matrix.cols() != cols) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", graph().weights(static_cast<int>(weight)).name(), " is loaded as ",
                     matrix.rows(), " x ", matrix.cols(), ", the graph says ", rows, " x ", cols));
  }
  return &matrix;
}

absl::StatusOr<const float*> BindContext::Vector(uint32_t weight, int64_t width) const {
  ASSIGN_OR_RETURN(const std::vector<float>* values, HostVector(weight, width));
  return values->data();
}

absl::StatusOr<SharedInput*> BindContext::ShareInput(uint32_t value, int64_t rows, int64_t cols,
                                                     int64_t segment_cols, bool* leader) {
  const bool first = !group_.open || group_.value != value || group_.segment_cols != segment_cols;
  if (first) {
    auto& prepared = prepared_[shared_inputs_.size() % 2];
    const std::optional<uint64_t> bytes =
        CheckedProduct({static_cast<uint64_t>(rows),
                        RoundUp(static_cast<uint64_t>(cols), kActivationGroup), kPreparedBytes});
    if (!bytes.has_value() || *bytes > prepared.bytes) {
      RETURN_IF_ERROR(Claim(bytes.has_value() ? std::optional(*bytes - prepared.bytes) : bytes));
      prepared.bytes = *bytes;
    }
    prepared.activations.Reserve(rows, cols, segment_cols);
    group_ = {value, segment_cols, true, TakeOffer(value, segment_cols)};
    shared_inputs_.push_back({.prepared = &prepared.activations,
                              .cols = cols,
                              .segment_cols = segment_cols,
                              .isa = options_.isa});
    if (group_.handover != nullptr) group_.handover->shared = &shared_inputs_.back();
  }
  *leader = first && group_.handover == nullptr;
  if (group_.handover != nullptr) ++group_.handover->reads;
  return &shared_inputs_.back();
}

Handover* BindContext::OfferPrepared(uint32_t value, int64_t most_segment_cols) {
  offers_.push_back({value, most_segment_cols, shared_inputs_.size(), {}});
  return &offers_.back().handover;
}

Handover* BindContext::TakeOffer(uint32_t value, int64_t segment_cols) {
  for (Offer& offer : offers_) {
    if (offer.value != value || offer.handover.shared != nullptr) continue;
    // Between the two nobody else may prepare anything: there are two places only.
    if (offer.shared_inputs != shared_inputs_.size()) continue;
    if (offer.most_segment_cols != 0 && (segment_cols == 0 || segment_cols % kLaneCols != 0 ||
                                         segment_cols > offer.most_segment_cols)) {
      continue;
    }
    return &offer.handover;
  }
  return nullptr;
}

absl::StatusOr<SharedAttention*> BindContext::Attention(const AttentionConfig& config) {
  for (SharedAttention& known : attentions_) {
    if (Same(known.config, config)) return &known;
  }
  ASSIGN_OR_RETURN(BoundAttention bound,
                   BoundAttention::Bind(config, options_.threads, options_.isa));
  attentions_.push_back({config, std::move(bound)});
  return &attentions_.back();
}

absl::StatusOr<const RopeTable*> BindContext::Rope(const RopeConfig& config) {
  for (const NamedRope& known : ropes_) {
    if (Same(known.config, config)) return &known.table;
  }
  ASSIGN_OR_RETURN(RopeTable table, RopeTable::Create(config));
  ropes_.push_back({config, std::move(table)});
  return &ropes_.back().table;
}

absl::StatusOr<SharedAngles*> BindContext::Angles(const RopeConfig& config, bool* leader) {
  ASSIGN_OR_RETURN(const RopeTable* table, Rope(config));
  *leader = false;
  for (SharedAngles& known : angles_) {
    if (known.table == table) return &known;
  }
  *leader = true;
  SharedAngles angles;
  angles.table = table;
  const int64_t half = config.rotary_dim / 2;
  ASSIGN_OR_RETURN(angles.cos, Scratch(options_.max_step_tokens, half));
  ASSIGN_OR_RETURN(angles.sin, Scratch(options_.max_step_tokens, half));
  angles.rotation = {.cos = angles.cos,
                     .sin = angles.sin,
                     .stride = half,
                     .rotary_dim = config.rotary_dim,
                     .pairing = config.pairing};
  angles_.push_back(angles);
  return &angles_.back();
}

absl::StatusOr<float*> BindContext::Scratch(int64_t rows, int64_t width) {
  const std::optional<uint64_t> bytes = CheckedProduct(
      {static_cast<uint64_t>(rows), static_cast<uint64_t>(width), uint64_t{sizeof(float)}});
  RETURN_IF_ERROR(Claim(bytes));
  scratch_.emplace_back(*bytes, MemoryPart::kWorkspace);
  return scratch_.back().as<float>();
}

absl::Status BindContext::Claim(std::optional<uint64_t> bytes) {
  const std::optional<uint64_t> total =
      bytes.has_value() ? CheckedAdd(workspace_bytes_, *bytes) : std::nullopt;
  if (!total.has_value() || *total > options_.max_workspace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "buffers for steps of ", options_.max_step_tokens, " tokens need ",
        total.has_value() ? absl::StrCat("at least ", *total) : "more than 2^64", " bytes, ",
        options_.max_workspace_bytes,
        " are left beside weights and slots; raise this worker's --memory, lower the coordinator's "
        "--token-budget, --max-running or --max-context, or use more workers"));
  }
  workspace_bytes_ = *total;
  return absl::OkStatus();
}

}  // namespace bitshard
