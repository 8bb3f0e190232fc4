// What lies between matrices: see roofline.h.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/logit_scan.h"
#include "tests/gpu/roofline.h"
#include "tests/gpu/timing.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// `count` floats, the same 64 Ki again and again.
absl::StatusOr<DeviceBuffer> SomeFloats(Device& device, DeviceStream& stream, size_t count,
                                        uint32_t seed) {
  constexpr size_t kDifferent = size_t{1} << 16;
  std::vector<float> values = RandomFloats(std::min(count, kDifferent), seed);
  values.reserve(count);
  for (size_t i = 0; values.size() < count; ++i) values.push_back(values[i]);
  return UploadBytes(device, values.data(), count * sizeof(float), stream);
}

absl::StatusOr<DeviceBuffer> Zeros(Device& device, DeviceStream& stream, size_t bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device.Alloc(bytes));
  RETURN_IF_ERROR(device.Fill(buffer.data(), 0, bytes, stream));
  return buffer;
}

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(Device& device, DeviceStream& stream,
                                    const std::vector<T>& values) {
  return UploadBytes(device, values.data(), values.size() * sizeof(T), stream);
}

// Of one token's rows fewer than no cache holds: there they are in a cache in any case.
int Copies(const RooflineSize& size, uint64_t bytes) {
  constexpr uint64_t kMost = 256;
  return static_cast<int>(std::min(size.rotate_bytes / bytes + 1, kMost));
}

}  // namespace

absl::StatusOr<RooflineLine> MeasureSumNorm(Device& device, int64_t m, int64_t width,
                                            const Ceilings& ceilings, const RooflineSize& size) {
  if (width % kTileCols != 0)
    return absl::InvalidArgumentError(absl::StrCat(width, " columns are no whole tiles"));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  RooflineLine line;
  line.what = absl::StrCat("sum and norm ", m, "x", width);
  const uint64_t count = static_cast<uint64_t>(m * width);
  // Sums and the residual in; the residual, fp16 and sums of runs out.
  line.bytes = count * (8 + 4 + 4 + 2) + count / kLaneCols * 4 + static_cast<uint64_t>(12 * m);
  const int copies = Copies(size, line.bytes);
  struct Copy {
    DeviceBuffer sums, x, half, scale, run_sum;
  };
  std::vector<Copy> all;
  for (int i = 0; i < copies; ++i) {
    Copy copy;
    ASSIGN_OR_RETURN(copy.sums, Zeros(device, *stream, count * sizeof(int64_t)));
    ASSIGN_OR_RETURN(copy.x, SomeFloats(device, *stream, count, 11));
    ASSIGN_OR_RETURN(copy.half, device.Alloc(count * sizeof(uint16_t)));
    ASSIGN_OR_RETURN(copy.scale, device.Alloc(m * sizeof(float)));
    ASSIGN_OR_RETURN(copy.run_sum, device.Alloc(count / kLaneCols * sizeof(float)));
    all.push_back(std::move(copy));
  }
  ASSIGN_OR_RETURN(const DeviceBuffer weight, SomeFloats(device, *stream, width, 12));
  ASSIGN_OR_RETURN(const DeviceBuffer poison, Zeros(device, *stream, m * sizeof(int64_t)));
  ASSIGN_OR_RETURN(const DeviceBuffer poisoned, Zeros(device, *stream, m));
  const auto enqueue = [&]() -> absl::Status {
    for (const Copy& copy : all) {
      DeviceSum sum;
      sum.in = copy.sums.as<int64_t>();
      sum.poison = poison.as<int64_t>();
      sum.residual = sum.x = copy.x.as<float>();
      sum.poisoned = poisoned.as<uint8_t>();
      sum.m = m;
      sum.width = width;
      DeviceActivations form;
      form.half = copy.half.as<uint16_t>();
      form.scale = copy.scale.as<float>();
      form.run_sum = copy.run_sum.as<float>();
      form.cols = form.padded_cols = width;
      DeviceNorm norm;
      norm.x = sum.x;
      norm.weight = weight.as<float>();
      norm.epsilon = 1e-6f;
      norm.prepared = &form;
      norm.m = m;
      norm.width = width;
      norm.sum = &sum;
      RETURN_IF_ERROR(device.kernels()->Norm(norm, *stream));
    }
    return absl::OkStatus();
  };
  return TimeLine(device, *stream, std::move(line), copies, ceilings, size, enqueue);
}

absl::StatusOr<RooflineLine> MeasureAppend(Device& device, const KvLayout& layout, int q_heads,
                                           int64_t m, const Ceilings& ceilings,
                                           const RooflineSize& size) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  const int64_t q_width = int64_t{q_heads} * layout.head_dim;
  const int64_t blocks = (m + kKvBlockTokens - 1) / kKvBlockTokens;
  RooflineLine line;
  line.what = absl::StrCat("rotate and append ", KvTypeName(layout.type), " ", q_heads, "/",
                           layout.kv_heads, " heads of ", layout.head_dim, ", ", m, " tokens");
  // Keys, values and angles in, queries in and out, whole blocks of the cache out.
  line.bytes =
      static_cast<uint64_t>(m * (2 * width + layout.head_dim + 2 * q_width)) * sizeof(float) +
      static_cast<uint64_t>(blocks * layout.block_bytes());
  const int copies = Copies(size, line.bytes);
  struct Copy {
    DeviceBuffer q, k, v, cache;
  };
  std::vector<Copy> all;
  for (int i = 0; i < copies; ++i) {
    Copy copy;
    ASSIGN_OR_RETURN(copy.q, SomeFloats(device, *stream, m * q_width, 16));
    ASSIGN_OR_RETURN(copy.k, SomeFloats(device, *stream, m * width, 13));
    ASSIGN_OR_RETURN(copy.v, SomeFloats(device, *stream, m * width, 14));
    ASSIGN_OR_RETURN(copy.cache, device.Alloc(blocks * layout.block_bytes()));
    all.push_back(std::move(copy));
  }
  std::vector<int32_t> position(m), row(m, 0);
  for (int64_t i = 0; i < m; ++i) position[i] = static_cast<int32_t>(i);
  std::vector<uint32_t> block(blocks);
  for (int64_t i = 0; i < blocks; ++i) block[i] = static_cast<uint32_t>(blocks - 1 - i);
  ASSIGN_OR_RETURN(const DeviceBuffer positions, Upload(device, *stream, position));
  ASSIGN_OR_RETURN(const DeviceBuffer rows, Upload(device, *stream, row));
  ASSIGN_OR_RETURN(const DeviceBuffer begin, Zeros(device, *stream, sizeof(int32_t)));
  ASSIGN_OR_RETURN(const DeviceBuffer table, Upload(device, *stream, block));
  // Queries are rotated again and again, which leaves their size as it is.
  std::vector<double> frequency(static_cast<size_t>(layout.head_dim) / 2);
  for (size_t i = 0; i < frequency.size(); ++i) frequency[i] = 1.0 / static_cast<double>(i + 1);
  ASSIGN_OR_RETURN(const DeviceBuffer frequencies, Upload(device, *stream, frequency));
  ASSIGN_OR_RETURN(const DeviceBuffer cos_sin, device.Alloc(m * layout.head_dim * sizeof(float)));
  DeviceRope rope;
  rope.inv_freq = frequencies.as<double>();
  rope.rotary_dim = layout.head_dim;
  rope.cos_sin = cos_sin.as<float>();
  DeviceTokens tokens;
  tokens.position = positions.as<int32_t>();
  tokens.row = rows.as<int32_t>();
  tokens.block_begin = begin.as<int32_t>();
  tokens.blocks = table.as<uint32_t>();
  RETURN_IF_ERROR(device.kernels()->Angles(rope, tokens, m, *stream));
  const auto enqueue = [&]() -> absl::Status {
    for (const Copy& copy : all) {
      DeviceAttention attention;
      attention.layout = layout;
      attention.q_heads = q_heads;
      attention.cache = copy.cache.data();
      attention.max_context = m;
      const DeviceAppend append{.k = copy.k.as<float>(),
                                .v = copy.v.as<float>(),
                                .stride = width,
                                .rope = &rope,
                                .q = copy.q.as<float>(),
                                .q_stride = q_width};
      RETURN_IF_ERROR(device.kernels()->Append(attention, append, tokens, m, *stream));
    }
    return absl::OkStatus();
  };
  return TimeLine(device, *stream, std::move(line), copies, ceilings, size, enqueue);
}

absl::StatusOr<RooflineLine> MeasureScan(Device& device, int64_t m, int64_t count,
                                         const Ceilings& ceilings, const RooflineSize& size) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  constexpr uint32_t kCandidates = 40;
  RooflineLine line;
  line.what = absl::StrCat("scan ", m, "x", count, ", ", kCandidates, " candidates");
  line.bytes = static_cast<uint64_t>(m * count) * sizeof(float);
  const int copies = Copies(size, line.bytes);
  std::vector<DeviceBuffer> all;
  for (int i = 0; i < copies; ++i) {
    ASSIGN_OR_RETURN(DeviceBuffer logits, SomeFloats(device, *stream, m * count, 15 + i));
    all.push_back(std::move(logits));
  }
  LogitScanRequest request;
  request.candidates = kCandidates;
  request.draws = 1;
  ASSIGN_OR_RETURN(const DeviceBuffer requests,
                   Upload(device, *stream, std::vector<LogitScanRequest>(m, request)));
  ASSIGN_OR_RETURN(const DeviceBuffer scratch,
                   device.Alloc(device.kernels()->ScanScratchBytes(m, count)));
  ASSIGN_OR_RETURN(const DeviceBuffer scans, device.Alloc(m * sizeof(LogitScan)));
  ASSIGN_OR_RETURN(const DeviceBuffer keys, device.Alloc(m * kCandidates * sizeof(uint64_t)));
  const auto enqueue = [&]() -> absl::Status {
    for (const DeviceBuffer& logits : all) {
      DeviceScan args;
      args.logits = logits.as<float>();
      args.stride = args.count = count;
      args.m = m;
      args.most = kCandidates;
      args.requests = requests.as<LogitScanRequest>();
      args.scratch = scratch.data();
      args.scans = scans.as<LogitScan>();
      args.keys = keys.as<uint64_t>();
      RETURN_IF_ERROR(device.kernels()->Scan(args, *stream));
    }
    return absl::OkStatus();
  };
  return TimeLine(device, *stream, std::move(line), copies, ceilings, size, enqueue);
}

}  // namespace bitshard
