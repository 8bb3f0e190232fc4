#include "kernels/cuda/attention_ops.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_status.h"

namespace bitshard {
namespace {

constexpr int64_t kMaxRows = 1 << 30;

absl::Status CheckLayout(const KvLayout& layout, int q_heads) {
  if (layout.kv_heads < 0 || layout.head_dim <= 0 || q_heads < 0 ||
      (layout.kv_heads == 0 && q_heads > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("cuda attention: ", q_heads, " query heads, ",
                                                   layout.kv_heads, " kv heads of ",
                                                   layout.head_dim));
  }
  if (layout.head_dim % 2 != 0 || layout.head_dim > cuda::kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat("cuda attention: no kernel for heads of ",
                                                 layout.head_dim,
                                                 "; there are kernels for even sizes up to ",
                                                 cuda::kMaxHeadDim, "; --device=cpu takes any"));
  }
  if (q_heads > cuda::kMaxQHeads) {
    return absl::UnimplementedError(absl::StrCat("cuda attention: no kernel for ", q_heads,
                                                 " query heads on one rank, only for up to ",
                                                 cuda::kMaxQHeads, "; use more ranks"));
  }
  return absl::OkStatus();
}

absl::Status CheckRows(int64_t m) {
  if (m < 0 || m > kMaxRows)
    return absl::InvalidArgumentError(absl::StrCat("cuda attention: ", m, " rows"));
  return absl::OkStatus();
}

absl::Status CheckRope(const DeviceRope& rope, int heads, int head_dim) {
  constexpr int kMaxHeads = 65535;
  if (rope.rotary_dim >= 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= head_dim &&
      heads >= 0 && heads <= kMaxHeads) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("cuda rope: rotary width ", rope.rotary_dim,
                                                 " does not fit ", heads, " heads of ", head_dim));
}

cuda::Rotation RotationOf(const DeviceRope& rope) {
  return {.rotary_dim = rope.rotary_dim,
          .interleaved = rope.pairing == RopeConfig::Pairing::kInterleaved,
          .cos_sin = reinterpret_cast<const float2*>(rope.cos_sin)};
}

cuda::TokenRows RowsOf(const DeviceTokens& tokens, int64_t m) {
  cuda::TokenRows rows;
  rows.position = tokens.position;
  rows.row = tokens.row;
  rows.block_begin = tokens.block_begin;
  rows.blocks = tokens.blocks;
  rows.m = m;
  return rows;
}

}  // namespace

absl::StatusOr<KernelChoice> ChooseCudaAttention(const KvLayout& layout, int q_heads,
                                                 bool deterministic) {
  RETURN_IF_ERROR(CheckLayout(layout, q_heads));
  KernelChoice choice;
  choice.format = absl::StrCat("kv ", KvTypeName(layout.type));
  choice.kernel = "cuda/attention";
  if (!deterministic && cuda::ServesAttendTiles(cuda::MakeKvCache(layout, nullptr), kMaxRows))
    choice.kernel += "; prefill: cuda/attention_tiles";
  choice.isa = BestIsa();  // of the host: not a fallback
  return choice;
}

absl::Status CudaAngles(const DeviceRope& rope, const DeviceTokens& tokens, int64_t m,
                        cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows(m));
  RETURN_IF_ERROR(CheckRope(rope, /*heads=*/1, /*head_dim=*/rope.rotary_dim));
  cuda::AngleArgs args;
  args.inv_freq = rope.inv_freq;
  args.attention_factor = rope.attention_factor;
  args.rotary_dim = rope.rotary_dim;
  args.position = tokens.position;
  args.m = m;
  args.cos_sin = reinterpret_cast<float2*>(rope.cos_sin);
  return CudaStatus(cuda::LaunchAngles(args, stream), "LaunchAngles");
}

absl::Status CudaRotate(float* x, int64_t stride, int heads, int head_dim, const DeviceRope& rope,
                        const DeviceTokens& tokens, int64_t m, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckRows(m));
  RETURN_IF_ERROR(CheckRope(rope, heads, head_dim));
  cuda::RotateAppendArgs args;
  args.cache.head_dim = head_dim;
  args.q = x;
  args.q_stride = stride;
  args.q_heads = heads;
  args.rotation = RotationOf(rope);
  args.tokens = RowsOf(tokens, m);
  return CudaStatus(cuda::LaunchRotateAppend(args, stream), "LaunchRotateAppend");
}

absl::Status CudaAppend(const DeviceAttention& attention, const DeviceAppend& append,
                        const DeviceTokens& tokens, int64_t m, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckLayout(attention.layout, attention.q_heads));
  RETURN_IF_ERROR(CheckRows(m));
  cuda::RotateAppendArgs args;
  args.cache = cuda::MakeKvCache(attention.layout, attention.cache);
  args.k = append.k;
  args.v = append.v;
  args.stride = append.stride;
  if (append.rope != nullptr) {
    RETURN_IF_ERROR(CheckRope(*append.rope, attention.q_heads, attention.layout.head_dim));
    args.q = append.q;
    args.q_stride = append.q_stride;
    args.q_heads = attention.q_heads;
    args.rotation = RotationOf(*append.rope);
  }
  args.tokens = RowsOf(tokens, m);
  return CudaStatus(cuda::LaunchRotateAppend(args, stream), "LaunchRotateAppend");
}

absl::Status CudaAttend(const DeviceAttention& attention, const float* q, int64_t q_stride,
                        float* out, int64_t out_stride, const DeviceTokens& tokens, int64_t m,
                        cudaStream_t stream) {
  RETURN_IF_ERROR(CheckLayout(attention.layout, attention.q_heads));
  RETURN_IF_ERROR(CheckRows(m));
  cuda::AttendArgs args;
  args.cache = cuda::MakeKvCache(attention.layout, attention.cache);
  args.q_heads = attention.q_heads;
  args.kv_head_of_q = attention.kv_head_of_q;
  args.scale = attention.scale;
  args.window = attention.window;
  args.q = q;
  args.q_stride = q_stride;
  args.out = out;
  args.out_stride = out_stride;
  args.tokens = RowsOf(tokens, m);
  args.plan = cuda::PlanAttend(attention.layout, attention.q_heads, m, attention.max_context,
                               attention.window, attention.scratch_bytes);
  args.scratch = attention.scratch;
  if (!attention.deterministic && cuda::ServesAttendTiles(args.cache, m)) {
    RETURN_IF_ERROR(CudaStatus(cuda::LaunchAttendTiles(args, stream), "LaunchAttendTiles"));
    args.without_tiles = true;
  }
  return CudaStatus(cuda::LaunchAttend(args, stream), "LaunchAttend");
}

}  // namespace bitshard
