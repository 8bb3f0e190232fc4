// What CUDA devices compute: DeviceKernels over the launch functions of this folder.
#include <algorithm>
#include <memory>

#include "absl/status/status.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_ops.h"
#include "kernels/cuda/synthetic_ops.h"
#include "kernels/registry/device_kernels.h"

namespace bitshard {
namespace {

cudaStream_t Native(const DeviceStream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

// What partial results of attention may take: a 64th of a device, in bounds; of a large one that
// makes contexts of 131072 tokens fast.
uint64_t MaxAttendScratch(uint64_t device_bytes) {
  constexpr uint64_t kLeast = uint64_t{64} << 20, kMost = uint64_t{1} << 30;
  return std::clamp(device_bytes / 64, kLeast, kMost);
}

class CudaKernels final : public DeviceKernels {
 public:
  explicit CudaKernels(const DeviceFacts& facts)
      : max_attend_scratch_(MaxAttendScratch(facts.total_bytes)) {}

  absl::StatusOr<KernelChoice> ChooseLinear(const PackedSpec& spec, int64_t segment_cols,
                                            ActivationMode mode,
                                            bool deterministic) const override {
    return ChooseCudaLinear(spec, segment_cols, mode, deterministic);
  }
  bool ReadsA8(const PackedSpec& spec, int64_t segment_cols, ActivationMode mode) const override {
    return CudaReadsA8(spec, segment_cols, mode);
  }
  absl::Status Linear(absl::Span<const DeviceLinear> members, const DeviceActivations& x, int64_t m,
                      DeviceStream& stream) const override {
    return CudaLinear(members, x, m, Native(stream));
  }
  absl::Status Gather(const DeviceMatrix& w, int64_t vocab_begin, const int32_t* tokens, int64_t m,
                      int64_t* out, DeviceStream& stream) const override {
    return CudaGather(w, vocab_begin, tokens, m, out, Native(stream));
  }

  absl::Status Sum(const DeviceSum& args, DeviceStream& stream) const override {
    return CudaSum(args, Native(stream));
  }
  absl::Status Norm(const DeviceNorm& args, DeviceStream& stream) const override {
    return CudaNorm(args, Native(stream));
  }
  absl::Status Prepare(const float* x, int64_t stride, int64_t m, const DeviceActivations& out,
                       DeviceStream& stream) const override {
    return CudaPrepare(x, stride, m, out, Native(stream));
  }
  absl::Status Gated(const DeviceGated& args, DeviceStream& stream) const override {
    return CudaGated(args, Native(stream));
  }
  absl::Status Add(const float* a, const float* b, float* x, int64_t m, int64_t width,
                   DeviceStream& stream) const override {
    return CudaAdd(a, b, x, m, width, Native(stream));
  }
  absl::Status GatherRows(const float* x, const int32_t* index, int64_t count, int64_t width,
                          float* out, DeviceStream& stream) const override {
    return CudaGatherRows(x, index, count, width, out, Native(stream));
  }
  absl::Status MakeSynthetic(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                             const SyntheticSource& source, uint8_t* blob,
                             DeviceStream& stream) const override {
    return CudaMakeSynthetic(spec, layout, source, blob, Native(stream));
  }

  absl::Status Scan(const DeviceScan& args, DeviceStream& stream) const override {
    return CudaScan(args, Native(stream));
  }
  uint64_t ScanScratchBytes(int64_t m, int64_t count) const override {
    return cuda::ScanScratchBytes(m, count);
  }
  absl::Status SumMasses(const DeviceMassSums& args, DeviceStream& stream) const override {
    return CudaSumMasses(args, Native(stream));
  }

  absl::StatusOr<KernelChoice> ChooseAttention(const KvLayout& layout, int q_heads,
                                               bool deterministic) const override {
    return ChooseCudaAttention(layout, q_heads, deterministic);
  }
  absl::Status Angles(const DeviceRope& rope, const DeviceTokens& tokens, int64_t m,
                      DeviceStream& stream) const override {
    return CudaAngles(rope, tokens, m, Native(stream));
  }
  absl::Status Rotate(float* x, int64_t stride, int heads, int head_dim, const DeviceRope& rope,
                      const DeviceTokens& tokens, int64_t m, DeviceStream& stream) const override {
    return CudaRotate(x, stride, heads, head_dim, rope, tokens, m, Native(stream));
  }
  absl::Status Append(const DeviceAttention& attention, const DeviceAppend& args,
                      const DeviceTokens& tokens, int64_t m, DeviceStream& stream) const override {
    return CudaAppend(attention, args, tokens, m, Native(stream));
  }
  absl::Status Attend(const DeviceAttention& attention, const float* q, int64_t q_stride,
                      float* out, int64_t out_stride, const DeviceTokens& tokens, int64_t m,
                      DeviceStream& stream) const override {
    return CudaAttend(attention, q, q_stride, out, out_stride, tokens, m, Native(stream));
  }
  uint64_t AttentionScratchBytes(const KvLayout& layout, int q_heads, int64_t max_tokens,
                                 int64_t max_context) const override {
    return cuda::AttendScratchBytes(layout, q_heads, max_tokens, max_context, max_attend_scratch_);
  }

 private:
  const uint64_t max_attend_scratch_;
};

std::unique_ptr<DeviceKernels> Make(const DeviceFacts& facts) {
  return std::make_unique<CudaKernels>(facts);
}

const RegisterCudaKernels kRegistered(&Make);

}  // namespace
}  // namespace bitshard
