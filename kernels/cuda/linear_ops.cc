#include "kernels/cuda/linear_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_a8.h"

namespace bitshard {
namespace {

using Type = PackedSpec::Type;

// Grid dimensions y and z end there.
constexpr int64_t kMaxRows = 65535;

// Why the tensor-core kernels cannot serve such a matrix.
enum class Misfit { kNone, kF32, kSegments, kGroups, kCut };

Misfit MisfitOf(const PackedSpec& spec, int64_t segment_cols) {
  if (spec.type == Type::kF32) return Misfit::kF32;
  if (segment_cols % kLaneCols != 0) return Misfit::kSegments;
  // All ranks must come to the same answer, or their sums would depend on the cut: a rank may hold
  // a single group of a matrix that has many.
  const bool cut_along_k = segment_cols != 0;
  if (spec.type == Type::kInt && (cut_along_k || spec.groups() > 1)) {
    if (spec.group_size % kLaneCols != 0) return Misfit::kGroups;
    if (spec.first_group_offset % kLaneCols != 0) return Misfit::kCut;
  }
  return Misfit::kNone;
}

bool FitsA8(const PackedSpec& spec, int64_t segment_cols) {
  return spec.type == Type::kInt && MisfitOf(spec, segment_cols) == Misfit::kNone;
}
bool ReadsA8(const DeviceMatrix& w, const DeviceActivations& x) {
  return x.a8 != nullptr && x.cols > 0 && FitsA8(w.spec, x.segment_cols);
}

std::string Reason(Misfit misfit, const PackedSpec& spec, int64_t segment_cols) {
  switch (misfit) {
    case Misfit::kSegments:
      return absl::StrCat("segments of ", segment_cols, " columns are no multiple of 16");
    case Misfit::kGroups:
      return absl::StrCat("groups of ", spec.group_size, " columns are no multiple of 16");
    case Misfit::kCut:
      return absl::StrCat("the cut lies ", spec.first_group_offset,
                          " columns inside a group, no multiple of 16");
    case Misfit::kF32:
      return "f32 weights do not fit a tensor core's operands";
    case Misfit::kNone:
      break;
  }
  return "";
}

std::string TilesName(const PackedSpec& spec) {
  switch (spec.type) {
    case Type::kInt:
      return absl::StrCat("cuda/linear_w", spec.bits);
    case Type::kF16:
      return "cuda/linear_f16";
    case Type::kBf16:
      return "cuda/linear_bf16";
    case Type::kF32:
      break;
  }
  return "cuda/linear_w*";
}

cuda::WeightType TypeOf(Type type) {
  switch (type) {
    case Type::kInt:
      return cuda::WeightType::kInt;
    case Type::kF32:
      return cuda::WeightType::kF32;
    case Type::kF16:
      return cuda::WeightType::kF16;
    case Type::kBf16:
      break;
  }
  return cuda::WeightType::kBf16;
}

cuda::Weight WeightOf(const DeviceMatrix& w) {
  cuda::Weight out;
  out.type = TypeOf(w.spec.type);
  out.bits = w.spec.bits;
  out.codes = w.codes;
  out.tile_bytes = w.tile_bytes;
  out.rows = w.rows();
  out.cols = w.cols();
  out.scale = w.scale;
  return out;
}

// The smallest float that is not below 2^31 / segments: comparing with it is comparing with the
// exact quotient.
float PoisonLimit(int64_t segments_total) {
  const double exact = 0x1p31 / static_cast<double>(segments_total);
  const float rounded = static_cast<float>(exact);
  return static_cast<double>(rounded) < exact
             ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
             : rounded;
}

absl::Status CheckMember(const DeviceLinear& member, const DeviceActivations& x, int64_t m) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("cuda linear: ", why...));
  };
  if (member.w == nullptr) return refuse("no matrix");
  if (member.w->cols() != x.cols) {
    return refuse("the matrix has ", member.w->cols(), " columns, the activations ", x.cols);
  }
  if (member.w->rows() == 0) return absl::OkStatus();  // and no memory for its output
  if ((member.y != nullptr) == (member.sums != nullptr)) return refuse("one of y and sums");
  if ((member.sums != nullptr) != (x.segment_cols != 0)) {
    return refuse("sums belong to activations in segments, y to a whole row");
  }
  if (member.sums != nullptr && (member.poison == nullptr || member.bias != nullptr)) {
    return refuse("sums need a poison count and take no bias");
  }
  if (member.segments_total < 1 || member.segments_total > (int64_t{1} << 31) ||
      (member.sums != nullptr && x.segments() > member.segments_total)) {
    return refuse(x.segments(), " segments here, ", member.segments_total, " in total");
  }
  if (m > 1 && member.stride < member.w->rows()) {
    return refuse("rows of ", member.w->rows(), " values at a stride of ", member.stride);
  }
  const bool f32 = member.w->spec.type == Type::kF32;
  if (ReadsA8(*member.w, x)) {
    const int64_t cols = x.cols + member.w->spec.first_group_offset;
    if (cols <= cuda::kMaxA8Cols) return absl::OkStatus();
    return refuse(cols, " columns, at most ", cuda::kMaxA8Cols, " with int8 activations");
  }
  if (x.cols > 0 && (f32 ? x.x == nullptr : x.half == nullptr || x.scale == nullptr)) {
    return refuse("the activations lack the form for ", member.w->spec.Describe());
  }
  if (x.cols > 0 && member.w->scale.has_min && x.run_sum == nullptr)
    return refuse("the activations lack run sums");
  return absl::OkStatus();
}

cuda::LinearMember MemberOf(const DeviceLinear& member) {
  const PackedSpec& spec = member.w->spec;
  cuda::LinearMember out;
  out.w = WeightOf(*member.w);
  out.y = member.y;
  out.sums = member.sums;
  out.stride = member.stride;
  out.bias = member.bias;
  out.poison = member.poison;
  out.limit = PoisonLimit(member.segments_total);
  if (spec.type == Type::kInt && spec.groups() > 1) {
    out.group_runs = spec.group_size / kLaneCols;
    out.first_group_runs = spec.first_group_offset / kLaneCols;
  }
  return out;
}

cuda::LinearLaunch LaunchOf(const DeviceActivations& x, int64_t m) {
  cuda::LinearLaunch launch;
  launch.segmented = x.segment_cols != 0;
  launch.half = x.half;
  launch.scale = x.scale;
  launch.run_sum = x.run_sum;
  launch.x = x.x;
  launch.cols = x.cols;
  launch.padded_cols = x.padded_cols;
  launch.segment_cols = launch.segmented ? x.segment_cols : x.cols;
  launch.segments = static_cast<int32_t>(x.segments());
  launch.m = static_cast<int32_t>(m);
  return launch;
}

cuda::LinearA8Launch A8LaunchOf(const DeviceActivations& x, int64_t m) {
  cuda::LinearA8Launch launch;
  launch.segmented = x.segment_cols != 0;
  launch.records = x.a8;
  launch.row_bytes = x.padded_cols / kTileCols * kA8RecordBytes;
  launch.cols = x.cols;
  launch.segment_cols = launch.segmented ? x.segment_cols : x.cols;
  launch.m = static_cast<int32_t>(m);
  return launch;
}

// Members that one launch can serve.
bool SameKernel(const cuda::Weight& a, const cuda::Weight& b) {
  return a.type == b.type && a.bits == b.bits &&
         cuda::ScalesArePlainHalves(a) == cuda::ScalesArePlainHalves(b);
}

// Whether Hopper's kernel takes the largest steps, of a whole K without --deterministic.
bool ServesWgmma(const PackedSpec& spec) {
  DeviceMatrix shape;
  shape.spec = spec;
  shape.scale.kind = spec.scale;
  shape.scale.shared_rows = spec.block_rows != 1;
  shape.scale.has_min = spec.has_min();
  cuda::LinearLaunch launch;
  launch.members[launch.count++] = MemberOf({.w = &shape});
  launch.cols = static_cast<int64_t>(spec.cols);
  launch.m = kMaxRows;
  return cuda::ServesLinearWgmma(launch);
}

// Member `first` and those after it that go with it; marks them in `launched`.
absl::Status LaunchA8(absl::Span<const DeviceLinear> members, size_t first,
                      const DeviceActivations& x, int64_t m, absl::Span<bool> launched,
                      cudaStream_t stream) {
  cuda::LinearA8Launch launch = A8LaunchOf(x, m);
  for (size_t i = first; i < members.size(); ++i) {
    if (launched[i] || !ReadsA8(*members[i].w, x)) continue;
    const cuda::LinearMember next = MemberOf(members[i]);
    const cuda::LinearMember& other = launch.members[0];
    if (launch.count > 0 && (other.w.bits != next.w.bits ||
                             cuda::CellsOf(other, launch) != cuda::CellsOf(next, launch))) {
      continue;
    }
    launch.members[launch.count++] = next;
    launched[i] = true;
  }
  return CudaStatus(cuda::LaunchLinearA8(launch, stream), "LaunchLinearA8");
}

}  // namespace

bool CudaReadsA8(const PackedSpec& spec, int64_t segment_cols, ActivationMode mode) {
  return mode == ActivationMode::kA8 && FitsA8(spec, segment_cols);
}

absl::StatusOr<KernelChoice> ChooseCudaLinear(const PackedSpec& spec, int64_t segment_cols,
                                              ActivationMode mode, bool deterministic) {
  if (segment_cols < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda linear: segments of ", segment_cols, " columns make no sense"));
  }
  const Misfit misfit = MisfitOf(spec, segment_cols);
  KernelChoice choice;
  choice.format = spec.Describe();
  choice.activations = spec.type == Type::kF32 ? "f32" : "f16";
  choice.kernel = TilesName(spec);
  choice.isa = BestIsa();  // of the host: not a fallback
  if (mode == ActivationMode::kA8 && spec.type == Type::kInt) {
    const std::string a8 = absl::StrCat(choice.kernel, "_a8");
    if (misfit == Misfit::kNone) {
      choice.kernel = a8;
      choice.activations = "a8";
    } else {
      choice.refused.push_back({a8, Reason(misfit, spec, segment_cols)});
    }
  }
  if (misfit == Misfit::kNone) {
    if (!deterministic && choice.activations != "a8" && segment_cols == 0 && ServesWgmma(spec))
      absl::StrAppend(&choice.kernel, "; prefill: cuda/linear_wgmma_w", spec.bits);
    return choice;
  }
  choice.refused.push_back({choice.kernel, Reason(misfit, spec, segment_cols)});
  choice.kernel = "cuda/linear_plain";
  choice.isa = Isa::kScalar;
  return choice;
}

absl::Status CudaLinear(absl::Span<const DeviceLinear> members, const DeviceActivations& x,
                        int64_t m, cudaStream_t stream) {
  if (members.size() > static_cast<size_t>(cuda::kMaxLinearMembers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda linear: ", members.size(), " matrices at once, at most ", cuda::kMaxLinearMembers));
  }
  if (m < 0 || m > kMaxRows || x.segments() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("cuda linear: ", m, " rows of ", x.segments(),
                                                   " segments; at most ", kMaxRows,
                                                   " rows at once"));
  }
  if (m == 0) return absl::OkStatus();
  bool launched[cuda::kMaxLinearMembers] = {};
  for (size_t i = 0; i < members.size(); ++i) {
    RETURN_IF_ERROR(CheckMember(members[i], x, m));
    launched[i] = members[i].w->rows() == 0;
  }
  for (size_t i = 0; i < members.size(); ++i) {
    if (launched[i]) continue;
    if (ReadsA8(*members[i].w, x)) {
      RETURN_IF_ERROR(LaunchA8(members, i, x, m, absl::MakeSpan(launched), stream));
      continue;
    }
    cuda::LinearLaunch launch = LaunchOf(x, m);
    launch.members[launch.count++] = MemberOf(members[i]);
    if (MisfitOf(members[i].w->spec, x.segment_cols) != Misfit::kNone) {
      RETURN_IF_ERROR(CudaStatus(cuda::LaunchLinearPlain(launch, stream), "LaunchLinearPlain"));
      continue;
    }
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (launched[j] || MisfitOf(members[j].w->spec, x.segment_cols) != Misfit::kNone) continue;
      const cuda::LinearMember next = MemberOf(members[j]);
      if (!SameKernel(launch.members[0].w, next.w) ||
          members[i].deterministic != members[j].deterministic) {
        continue;
      }
      launch.members[launch.count++] = next;
      launched[j] = true;
    }
    if (!members[i].deterministic && cuda::ServesLinearWgmma(launch)) {
      RETURN_IF_ERROR(CudaStatus(cuda::LaunchLinearWgmma(launch, stream), "LaunchLinearWgmma"));
      continue;
    }
    RETURN_IF_ERROR(CudaStatus(cuda::LaunchLinearTiles(launch, stream), "LaunchLinearTiles"));
  }
  return absl::OkStatus();
}

absl::Status CudaGather(const DeviceMatrix& w, int64_t vocab_begin, const int32_t* tokens,
                        int64_t m, int64_t* out, cudaStream_t stream) {
  if (m < 0 || m > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda gather: ", m, " rows; at most ", kMaxRows, " at once"));
  }
  cuda::GatherLaunch launch;
  launch.w = WeightOf(w);
  launch.vocab_begin = vocab_begin;
  launch.tokens = tokens;
  launch.m = m;
  launch.out = out;
  return CudaStatus(cuda::LaunchGather(launch, stream), "LaunchGather");
}

}  // namespace bitshard
