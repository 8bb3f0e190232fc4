#include "worker/device/device_bind_context.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "worker/collective/device_collective.h"
#include "worker/device/device_groups.h"

namespace bitshard {
namespace {

// Up to which a library may round up what it can share between ranks.
constexpr uint64_t kSharedGranularity = uint64_t{2} << 20;

}  // namespace

DeviceBindContext::DeviceBindContext(const internal::ModelGraph& graph,
                                     const LoadedWeights& weights, const Options& options,
                                     DeviceStream& stream)
    : GraphValues(graph, weights.vectors, GroupForDevice(graph)),
      weights_(weights),
      options_(options),
      stream_(stream) {}

absl::StatusOr<std::unique_ptr<DeviceBindContext>> DeviceBindContext::Create(
    const internal::ModelGraph& graph, const LoadedWeights& weights, const Options& options,
    DeviceStream& stream) {
  CHECK(options.device != nullptr && weights.device != nullptr);
  if (options.device->kernels() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("device ", options.device->facts().kind, " has no kernels for steps"));
  }
  auto context =
      std::unique_ptr<DeviceBindContext>(new DeviceBindContext(graph, weights, options, stream));
  const uint64_t rows = static_cast<uint64_t>(options.max_step_tokens);
  RETURN_IF_ERROR(context->PlanValues(rows, static_cast<uint64_t>(options.max_outputs),
                                      /*sums_apart=*/true));
  ASSIGN_OR_RETURN(uint8_t* const arena, context->Scratch(context->arena_bytes()));
  context->set_arena(arena);
  RETURN_IF_ERROR(context->MakeSums());

  const size_t count = weights.matrix_count();
  std::vector<bool> owned(count), reads_f32(count);
  for (size_t i = 0; i < count; ++i) {
    owned[i] = weights.device->matrix(static_cast<uint32_t>(i)) != nullptr;
    reads_f32[i] = owned[i] && weights.SpecOf(i).type == PackedSpec::Type::kF32;
  }
  const auto reads_a8 = [&](uint32_t weight, int64_t segment_cols) {
    return context->kernels().ReadsA8(weights.device->matrix(weight)->spec, segment_cols,
                                      options.activations);
  };
  context->prepared_ = std::make_unique<PreparedPlan>(graph, context->groups(), owned, reads_f32,
                                                      /*segments=*/options.deterministic, reads_a8);
  ASSIGN_OR_RETURN(uint8_t* const forms, context->Scratch(context->prepared_->Place(rows)));
  context->prepared_->SetMemory(forms, rows, [&](uint32_t value) { return context->f32(value); });
  return context;
}

absl::StatusOr<const DeviceMatrix*> DeviceBindContext::Matrix(uint32_t weight) const {
  int64_t rows = 0, cols = 0;
  RETURN_IF_ERROR(MatrixShape(weight, &rows, &cols));
  if (rows == 0 || cols == 0) return nullptr;
  const DeviceMatrix* const matrix = weights_.device->matrix(weight);
  if (matrix == nullptr || matrix->rows() != rows || matrix->cols() != cols) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight ", graph().weights(static_cast<int>(weight)).name(), " is loaded as ",
        matrix == nullptr ? 0 : matrix->rows(), " x ", matrix == nullptr ? 0 : matrix->cols(),
        ", the graph says ", rows, " x ", cols));
  }
  return matrix;
}

absl::StatusOr<const float*> DeviceBindContext::Vector(uint32_t weight, int64_t width) const {
  RETURN_IF_ERROR(HostVector(weight, width).status());
  return weights_.device->vector(weight);
}

absl::Status DeviceBindContext::MakeSums() {
  if (options_.world == 1) {
    ASSIGN_OR_RETURN(uint8_t* const arena, Scratch(sums_bytes()));
    set_sums_arena(arena);
    return absl::OkStatus();
  }
  if (sums_bytes() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Claim(RoundUp(sums_bytes(), kSharedGranularity)));
  ASSIGN_OR_RETURN(sums_, AllocCollectiveMemory(device(), sums_bytes()));
  set_sums_arena(sums_.data());
  return device().Fill(sums_.data(), 0, sums_.bytes(), stream_);
}

absl::StatusOr<uint8_t*> DeviceBindContext::Scratch(std::optional<uint64_t> bytes) {
  RETURN_IF_ERROR(Claim(bytes));
  if (*bytes == 0) return nullptr;
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device().Alloc(*bytes));
  RETURN_IF_ERROR(device().Fill(buffer.data(), 0, *bytes, stream_));
  memory_.push_back(std::move(buffer));
  return memory_.back().data();
}

absl::StatusOr<DeviceBuffer> DeviceBindContext::Pinned(std::optional<uint64_t> bytes) {
  if (!bytes.has_value()) {
    return absl::ResourceExhaustedError(
        "pinned memory for a step would be more than 2^64 bytes; lower the coordinator's "
        "--token-budget or --max-running");
  }
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device().AllocHost(*bytes));
  pinned_bytes_ += *bytes;
  return buffer;
}

absl::StatusOr<uint8_t*> DeviceBindContext::Table(const void* data, uint64_t bytes) {
  std::string content(static_cast<const char*>(data), bytes);
  const auto known = tables_.find(content);
  if (known != tables_.end()) return known->second;
  ASSIGN_OR_RETURN(uint8_t* const table, Scratch(bytes));
  if (bytes > 0) {
    RETURN_IF_ERROR(device().Copy(table, data, bytes, stream_));
    RETURN_IF_ERROR(device().Sync(stream_));  // `data` may be gone soon
  }
  tables_.emplace(std::move(content), table);
  return table;
}

absl::StatusOr<DeviceRope> DeviceBindContext::Rope(const RopeConfig& config) {
  ASSIGN_OR_RETURN(const RopeTable table, RopeTable::Create(config));  // checks the numbers
  DeviceRope rope;
  const auto* yarn = std::get_if<RopeConfig::Yarn>(&config.scaling);
  rope.attention_factor = yarn == nullptr ? 1 : yarn->attention_factor;
  rope.rotary_dim = config.rotary_dim;
  rope.pairing = config.pairing;
  for (const NamedRope& known : ropes_) {
    if (known.inv_freq == table.inv_freq() && known.rope.rotary_dim == rope.rotary_dim &&
        known.rope.attention_factor == rope.attention_factor &&
        known.rope.pairing == rope.pairing) {
      return known.rope;
    }
  }
  ASSIGN_OR_RETURN(uint8_t* const inv_freq,
                   Table(table.inv_freq().data(), table.inv_freq().size() * sizeof(double)));
  rope.inv_freq = reinterpret_cast<const double*>(inv_freq);
  ASSIGN_OR_RETURN(uint8_t* const cos_sin,
                   Scratch(CheckedProduct({static_cast<uint64_t>(options_.max_step_tokens),
                                           table.inv_freq().size(), 2 * sizeof(float)})));
  rope.cos_sin = reinterpret_cast<float*>(cos_sin);
  ropes_.push_back({table.inv_freq(), rope});
  return rope;
}

absl::Status DeviceBindContext::EnqueueAngles(const DeviceTokens& tokens, int64_t m,
                                              DeviceStream& stream) const {
  for (const NamedRope& known : ropes_)
    RETURN_IF_ERROR(kernels().Angles(known.rope, tokens, m, stream));
  return absl::OkStatus();
}

absl::Status DeviceBindContext::ReserveAttention(const KvLayout& layout, int q_heads) {
  attention_bytes_ =
      std::max(attention_bytes_,
               kernels().AttentionScratchBytes(
                   layout, q_heads, options_.max_step_tokens,
                   static_cast<int64_t>(RoundUp(graph().context_length(), kKvChunkTokens))));
  return absl::OkStatus();
}

absl::Status DeviceBindContext::MakeAttentionScratch() {
  // The rest is the cache's, and a worker is not refused for what only makes it faster.
  constexpr uint64_t kShareOfTheRest = 8;
  const uint64_t room = (options_.max_workspace_bytes - workspace_bytes_) / kShareOfTheRest;
  if (room < attention_bytes_) {
    LogInfo(
        "worker: attention over long contexts has {} bytes for partial results, {} would make it "
        "faster: raise --memory",
        room, attention_bytes_);
    attention_bytes_ = room;
  }
  ASSIGN_OR_RETURN(attention_scratch_, Scratch(attention_bytes_));
  return absl::OkStatus();
}

absl::Status DeviceBindContext::Claim(std::optional<uint64_t> bytes) {
  const std::optional<uint64_t> total =
      bytes.has_value() ? CheckedAdd(workspace_bytes_, *bytes) : std::nullopt;
  if (!total.has_value() || *total > options_.max_workspace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "buffers on the device for steps of ", options_.max_step_tokens, " tokens need ",
        total.has_value() ? absl::StrCat("at least ", *total) : "more than 2^64", " bytes, ",
        options_.max_workspace_bytes,
        " are left beside the weights; raise this worker's --memory, lower the coordinator's "
        "--token-budget, --max-running or --max-context, or use more workers"));
  }
  workspace_bytes_ = *total;
  return absl::OkStatus();
}

}  // namespace bitshard
