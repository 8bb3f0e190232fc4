#include "worker/load/load_plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::TensorLoad;

enum class Use : uint8_t { kNone, kMatrix, kVector };

absl::Status Contradiction(const TensorLoad& load, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "load plan: tensor ", load.parts_size() == 0 ? "without parts" : load.parts(0).source_name(),
      ": ", what));
}

// How the graph's nodes use each weight.
absl::StatusOr<std::vector<Use>> UsesOfWeights(const internal::ModelGraph& graph) {
  std::vector<Use> uses(static_cast<size_t>(graph.weights_size()), Use::kNone);
  absl::Status status;
  auto mark = [&](uint32_t weight, Use use, const Node& node) {
    if (weight >= uses.size()) {
      status = absl::InvalidArgumentError(
          absl::StrCat("graph: node ", node.name(), " uses weight ", weight, " of ", uses.size()));
    } else if (uses[weight] != Use::kNone && uses[weight] != use) {
      status = absl::InvalidArgumentError(
          absl::StrCat("graph: weight ", graph.weights(static_cast<int>(weight)).name(),
                       " is used both as a matrix and as a vector (", node.name(), ")"));
    } else {
      uses[weight] = use;
    }
  };
  for (const Node& node : graph.nodes()) {
    switch (node.op_case()) {
      case Node::kEmbed:
        mark(node.embed().weight(), Use::kMatrix, node);
        break;
      case Node::kRmsNorm:
        mark(node.rms_norm().weight(), Use::kVector, node);
        break;
      case Node::kLinear:
        mark(node.linear().weight(), Use::kMatrix, node);
        if (node.linear().has_bias()) mark(node.linear().bias(), Use::kVector, node);
        break;
      case Node::kRope:
        if (node.rope().scaling_case() == internal::Rope::kDivisorsWeight) {
          mark(node.rope().divisors_weight(), Use::kVector, node);
        }
        break;
      case Node::kAllReduce:
        if (node.all_reduce().has_bias()) mark(node.all_reduce().bias(), Use::kVector, node);
        break;
      case Node::kLmHead:
        mark(node.lm_head().weight(), Use::kMatrix, node);
        break;
      case Node::kAttention:
      case Node::kGatedAct:
      case Node::kResidualAdd:
      case Node::kSample:
      case Node::OP_NOT_SET:
        break;
    }
    RETURN_IF_ERROR(status);
  }
  return uses;
}

absl::StatusOr<CheckedPart> CheckPart(const TensorLoad& load, int i, const CheckedTensor& tensor,
                                      const std::vector<SourceFile>& files) {
  const internal::PartLoad& part = load.parts(i);
  if (part.file() >= files.size()) return Contradiction(load, "file index out of range");
  CheckedPart checked;
  checked.slice =
      tensor.format->SliceOfPart(static_cast<size_t>(i), tensor.source_cols, tensor.slice);
  const PartSlice planned{part.row_begin(), part.row_end(), part.byte_begin(), part.byte_end()};
  if (!(planned == checked.slice)) {
    return Contradiction(
        load,
        absl::StrCat("of ", part.source_name(), " it covers rows [", planned.row_begin, ", ",
                     planned.row_end, ") and bytes [", planned.byte_begin, ", ", planned.byte_end,
                     ") of each, expected [", checked.slice.row_begin, ", ", checked.slice.row_end,
                     ") and [", checked.slice.byte_begin, ", ", checked.slice.byte_end, ")"));
  }
  ASSIGN_OR_RETURN(checked.reader, RangeReader::Create(&files[part.file()], part.ranges()));
  if (checked.reader.size_bytes() != checked.slice.bytes()) {
    return Contradiction(load, absl::StrCat("the ranges of ", part.source_name(), " have ",
                                            checked.reader.size_bytes(), " bytes, its slice has ",
                                            checked.slice.bytes()));
  }
  return checked;
}

absl::StatusOr<CheckedTensor> WithArenaBytes(CheckedTensor tensor) {
  if (tensor.is_matrix) {
    const PackedSpec spec = tensor.format->Canonical(tensor.source_cols, tensor.slice);
    ASSIGN_OR_RETURN(tensor.arena_bytes, PackedBytes(spec));
    if (tensor.parts.empty()) RETURN_IF_ERROR(CheckSynthetic(spec));
  } else {
    const auto bytes = CheckedMul(tensor.slice.cols(), sizeof(float));
    if (!bytes) return Contradiction(*tensor.load, "sizes overflow");
    tensor.arena_bytes = *bytes;
  }
  return tensor;
}

absl::StatusOr<CheckedTensor> CheckTensor(const TensorLoad& load, const internal::Weight& weight,
                                          Use use, const std::vector<SourceFile>& files,
                                          bool synthetic) {
  if (load.row_begin() > load.row_end() || load.row_end() > load.rows() ||
      load.col_begin() > load.col_end() || load.col_end() > load.cols()) {
    return Contradiction(load, "its slice does not lie inside of it");
  }
  CheckedTensor tensor;
  tensor.load = &load;
  tensor.weight = load.weight();
  tensor.is_matrix = use != Use::kVector;
  tensor.source_cols = load.cols();
  tensor.slice = {load.row_begin(), load.row_end(), load.col_begin(), load.col_end()};
  const uint64_t rows = tensor.slice.rows(), cols = tensor.slice.cols();
  if (rows != weight.rows() || cols != weight.cols() || load.format() != weight.format()) {
    return Contradiction(
        load, absl::StrCat("it gives ", rows, " x ", cols, " ", load.format(), ", the graph wants ",
                           weight.rows(), " x ", weight.cols(), " ", weight.format()));
  }
  if (!tensor.is_matrix && rows != 1) return Contradiction(load, "a vector has one row");
  ASSIGN_OR_RETURN(tensor.format, GetFormat(load.format()));
  if (synthetic) {
    if (load.parts_size() > 0) return Contradiction(load, "a synthetic weight has no parts");
    RETURN_IF_ERROR(StoredBytes(*tensor.format, load.rows(), load.cols()).status());
    return WithArenaBytes(std::move(tensor));
  }
  if (static_cast<size_t>(load.parts_size()) != tensor.format->part_count()) {
    return Contradiction(load, absl::StrCat("it has ", load.parts_size(), " parts, ", load.format(),
                                            " has ", tensor.format->part_count()));
  }
  for (int i = 0; i < load.parts_size(); ++i) {
    const absl::StatusOr<PartShape> shape =
        tensor.format->ShapeOfPart(static_cast<size_t>(i), load.rows(), load.cols());
    if (!shape.ok()) return Contradiction(load, std::string(shape.status().message()));
    ASSIGN_OR_RETURN(CheckedPart part, CheckPart(load, i, tensor, files));
    const auto sum = CheckedAdd(tensor.read_bytes, part.slice.bytes());
    if (!sum) return Contradiction(load, "sizes overflow");
    tensor.read_bytes = *sum;
    tensor.parts.push_back(std::move(part));
  }
  return WithArenaBytes(std::move(tensor));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedLoadPlan>> CheckLoadPlan(const internal::RankPlan& plan) {
  const internal::ModelGraph& graph = plan.graph();
  const bool synthetic = plan.load().has_synthetic_seed();
  ASSIGN_OR_RETURN(const std::vector<Use> uses, UsesOfWeights(graph));
  auto checked = std::make_unique<CheckedLoadPlan>();
  if (synthetic) checked->synthetic_seed = plan.load().synthetic_seed();
  checked->files.reserve(static_cast<size_t>(plan.load().files_size()));  // readers point at them
  for (const internal::SourceFile& file : plan.load().files()) {
    ASSIGN_OR_RETURN(SourceFile opened, SourceFile::Open(file.path(), file.size_bytes()));
    checked->files.push_back(std::move(opened));
  }
  std::vector<bool> loaded(uses.size(), false);
  for (const TensorLoad& load : plan.load().tensors()) {
    if (load.weight() >= uses.size()) return Contradiction(load, "weight index out of range");
    if (loaded[load.weight()]) return Contradiction(load, "its weight is loaded twice");
    loaded[load.weight()] = true;
    const internal::Weight& weight = graph.weights(static_cast<int>(load.weight()));
    if (weight.rows() == 0 || weight.cols() == 0) continue;
    ASSIGN_OR_RETURN(CheckedTensor tensor,
                     CheckTensor(load, weight, uses[load.weight()], checked->files, synthetic));
    const std::optional<uint64_t> read = CheckedAdd(checked->read_bytes, tensor.read_bytes);
    const std::optional<uint64_t> arena = CheckedAdd(checked->arena_bytes, tensor.arena_bytes);
    if (!read.has_value() || !arena.has_value()) return Contradiction(load, "sizes overflow");
    checked->read_bytes = *read;
    checked->arena_bytes = *arena;
    checked->tensors.push_back(std::move(tensor));
  }
  for (size_t w = 0; w < uses.size(); ++w) {
    const internal::Weight& weight = graph.weights(static_cast<int>(w));
    if (!loaded[w] && weight.rows() != 0 && weight.cols() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("load plan: nothing is loaded for weight ", weight.name()));
    }
  }
  if (checked->read_bytes != plan.load().read_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("load plan: it claims ", plan.load().read_bytes(), " bytes, its ranges have ",
                     checked->read_bytes));
  }
  if (synthetic) return checked;
  std::stable_sort(checked->tensors.begin(), checked->tensors.end(),
                   [](const CheckedTensor& a, const CheckedTensor& b) {
                     const internal::PartLoad& x = a.load->parts(0);
                     const internal::PartLoad& y = b.load->parts(0);
                     return std::pair(x.file(), x.ranges(0).offset()) <
                            std::pair(y.file(), y.ranges(0).offset());
                   });
  return checked;
}

}  // namespace bitshard
