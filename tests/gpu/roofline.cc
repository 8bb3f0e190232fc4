#include "tests/gpu/roofline.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device_matrix.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

struct Timing {
  double seconds = 0, spread = 0;
};

// Captures `enqueue`, which enqueues `launches` equal pieces of work, and times its replays.
absl::StatusOr<Timing> TimeGraph(Device& device, DeviceStream& stream, int launches,
                                 int repetitions, const std::function<absl::Status()>& enqueue) {
  RETURN_IF_ERROR(enqueue());  // what is set up at the first use is not captured
  RETURN_IF_ERROR(device.Sync(stream));
  RETURN_IF_ERROR(device.BeginCapture(stream));
  const absl::Status enqueued = enqueue();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceGraph> graph, device.EndCapture(stream));
  RETURN_IF_ERROR(enqueued);
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(device.Launch(*graph, stream));
    RETURN_IF_ERROR(device.Sync(stream));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (i > 0) seconds.push_back(taken.count() / launches);  // the first one warms up
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return Timing{.seconds = median, .spread = (seconds.back() - seconds.front()) / median};
}

RooflineLine Line(std::string what, uint64_t bytes, const Timing& timing, double copy_rate) {
  return {.what = std::move(what),
          .bytes = bytes,
          .seconds = timing.seconds,
          .spread = timing.spread,
          .share = static_cast<double>(bytes) / timing.seconds / copy_rate};
}

absl::StatusOr<DeviceBuffer> Upload(Device& device, const void* data, size_t bytes,
                                    DeviceStream& stream) {
  ASSIGN_OR_RETURN(DeviceBuffer there, device.Alloc(bytes));
  RETURN_IF_ERROR(device.Copy(there.data(), data, bytes, stream));
  RETURN_IF_ERROR(device.Sync(stream));
  return there;
}

// A matrix as large as `spec` says, every row tile the same random one: enough for a rate, and
// quick.
absl::StatusOr<DeviceMatrix> RepeatTile(Device& device, const PackedSpec& spec,
                                        const DeviceBuffer& blob, DeviceStream& stream) {
  PackedSpec tile_spec = spec;
  tile_spec.rows = kTileRows;
  const PackedMatrix tile = RandomMatrix(tile_spec, /*seed=*/7);
  ASSIGN_OR_RETURN(const DeviceMatrixLayout small, LayoutOnDevice(tile_spec));
  ASSIGN_OR_RETURN(const DeviceMatrixLayout large, LayoutOnDevice(spec));
  std::vector<uint8_t> bytes(small.bytes);
  CopyInDeviceOrder(tile, small, 0, small.bytes, bytes.data());
  ASSIGN_OR_RETURN(const DeviceBuffer there, Upload(device, bytes.data(), bytes.size(), stream));
  for (int64_t t = 0; t < static_cast<int64_t>(spec.rows) / kTileRows; ++t) {
    RETURN_IF_ERROR(device.Copy(blob.data() + large.codes + t * large.tile_bytes,
                                there.data() + small.codes, small.tile_bytes, stream));
    if (large.scale_tile_bytes == 0) continue;
    RETURN_IF_ERROR(device.Copy(blob.data() + large.scales + t * large.scale_tile_bytes,
                                there.data() + small.scales, small.scale_tile_bytes, stream));
  }
  RETURN_IF_ERROR(device.Sync(stream));
  DeviceMatrix matrix = MatrixOnDevice(tile, large, blob.data());
  matrix.spec = spec;
  matrix.scale.rows = static_cast<int64_t>(spec.rows);
  return matrix;
}

}  // namespace

absl::StatusOr<double> MeasureCopyRate(Device& device, const RooflineSize& size) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  ASSIGN_OR_RETURN(const DeviceBuffer from, device.Alloc(size.copy_bytes));
  ASSIGN_OR_RETURN(const DeviceBuffer to, device.Alloc(size.copy_bytes));
  RETURN_IF_ERROR(device.Fill(from.data(), 1, size.copy_bytes, *stream));
  ASSIGN_OR_RETURN(const Timing timing,
                   TimeGraph(device, *stream, 1, size.repetitions, [&]() -> absl::Status {
                     return device.Copy(to.data(), from.data(), size.copy_bytes, *stream);
                   }));
  return 2.0 * static_cast<double>(size.copy_bytes) / timing.seconds;
}

absl::StatusOr<RooflineLine> MeasureLinear(Device& device, const PackedSpec& spec, int m,
                                           double copy_rate, const RooflineSize& size) {
  if (spec.rows % kTileRows != 0 || spec.block_rows != 1)
    return absl::InvalidArgumentError("rows must be a multiple of 16 with scales of their own");
  const DeviceKernels& kernels = *device.kernels();
  const int64_t rows = static_cast<int64_t>(spec.rows), cols = static_cast<int64_t>(spec.cols);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  ASSIGN_OR_RETURN(const DeviceMatrixLayout layout, LayoutOnDevice(spec));
  const int copies = static_cast<int>(size.rotate_bytes / layout.bytes) + 1;
  std::vector<DeviceBuffer> blobs;
  std::vector<DeviceMatrix> matrices;
  for (int i = 0; i < copies; ++i) {
    ASSIGN_OR_RETURN(DeviceBuffer blob, device.Alloc(layout.bytes));
    ASSIGN_OR_RETURN(DeviceMatrix matrix, RepeatTile(device, spec, blob, *stream));
    blobs.push_back(std::move(blob));
    matrices.push_back(matrix);
  }

  const std::vector<float> x = RandomFloats(static_cast<size_t>(m * cols), /*seed=*/3);
  ASSIGN_OR_RETURN(const DeviceBuffer x_there,
                   Upload(device, x.data(), x.size() * sizeof(float), *stream));
  DeviceActivations prepared{.cols = cols, .padded_cols = (cols + 63) / 64 * 64};
  ASSIGN_OR_RETURN(const DeviceBuffer half, device.Alloc(2 * m * prepared.padded_cols));
  ASSIGN_OR_RETURN(const DeviceBuffer scale, device.Alloc(m * sizeof(float)));
  ASSIGN_OR_RETURN(const DeviceBuffer run_sum,
                   device.Alloc(m * prepared.padded_cols / 16 * sizeof(float)));
  prepared.half = half.as<uint16_t>();
  prepared.scale = scale.as<float>();
  prepared.run_sum = run_sum.as<float>();
  prepared.x = x_there.as<float>();
  RETURN_IF_ERROR(kernels.Prepare(x_there.as<float>(), cols, m, prepared, *stream));
  ASSIGN_OR_RETURN(const DeviceBuffer y, device.Alloc(m * rows * sizeof(float)));

  ASSIGN_OR_RETURN(const Timing timing,
                   TimeGraph(device, *stream, copies, size.repetitions, [&]() -> absl::Status {
                     for (const DeviceMatrix& matrix : matrices) {
                       const DeviceLinear member{.w = &matrix, .y = y.as<float>(), .stride = rows};
                       RETURN_IF_ERROR(kernels.Linear({&member, 1}, prepared, m, *stream));
                     }
                     return absl::OkStatus();
                   }));
  const uint64_t bytes = layout.bytes + 2 * m * cols + 4 * m * rows;
  return Line(absl::StrCat(spec.Describe(), " ", rows, "x", cols, " m=", m), bytes, timing,
              copy_rate);
}

absl::StatusOr<RooflineLine> MeasureAttention(Device& device, const KvLayout& layout, int q_heads,
                                              int sequences, int64_t context, double copy_rate,
                                              const RooflineSize& size) {
  const DeviceKernels& kernels = *device.kernels();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  const int64_t blocks_each = (context + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t blocks = blocks_each * sequences, layer_bytes = blocks * layout.block_bytes();
  const int layers = static_cast<int>(size.rotate_bytes / layer_bytes) + 1;
  ASSIGN_OR_RETURN(const DeviceBuffer cache, device.Alloc(layers * layer_bytes));
  RETURN_IF_ERROR(device.Fill(cache.data(), 0, cache.bytes(), *stream));

  std::vector<int32_t> token(sequences), position(sequences), row(sequences), begin(sequences);
  for (int i = 0; i < sequences; ++i) {
    position[i] = static_cast<int32_t>(context - 1);
    row[i] = i;
    begin[i] = static_cast<int32_t>(i * blocks_each);
  }
  std::vector<uint32_t> block(blocks);
  for (int64_t i = 0; i < blocks; ++i) block[i] = static_cast<uint32_t>(i * 5 % blocks);  // a walk
  if (blocks % 5 == 0) {
    for (int64_t i = 0; i < blocks; ++i) block[i] = static_cast<uint32_t>(blocks - 1 - i);
  }
  std::vector<int32_t> kv_head(q_heads);
  for (int h = 0; h < q_heads; ++h) kv_head[h] = h * layout.kv_heads / q_heads;
  const std::vector<float> q =
      RandomFloats(static_cast<size_t>(sequences) * q_heads * layout.head_dim, /*seed=*/5);
  const auto upload = [&](const auto& values) {
    return Upload(device, values.data(), values.size() * sizeof(values[0]), *stream);
  };
  ASSIGN_OR_RETURN(const DeviceBuffer token_there, upload(token));
  ASSIGN_OR_RETURN(const DeviceBuffer position_there, upload(position));
  ASSIGN_OR_RETURN(const DeviceBuffer row_there, upload(row));
  ASSIGN_OR_RETURN(const DeviceBuffer begin_there, upload(begin));
  ASSIGN_OR_RETURN(const DeviceBuffer block_there, upload(block));
  ASSIGN_OR_RETURN(const DeviceBuffer kv_head_there, upload(kv_head));
  ASSIGN_OR_RETURN(const DeviceBuffer q_there, upload(q));
  ASSIGN_OR_RETURN(const DeviceBuffer out, device.Alloc(q_there.bytes()));
  ASSIGN_OR_RETURN(const DeviceBuffer scratch, device.Alloc(kernels.AttentionScratchBytes(
                                                   layout, q_heads, sequences, context)));
  if (scratch.bytes() != 0)
    RETURN_IF_ERROR(device.Fill(scratch.data(), 0, scratch.bytes(), *stream));

  const DeviceTokens tokens{.token = token_there.as<int32_t>(),
                            .position = position_there.as<int32_t>(),
                            .row = row_there.as<int32_t>(),
                            .block_begin = begin_there.as<int32_t>(),
                            .blocks = block_there.as<uint32_t>()};
  const int64_t width = int64_t{q_heads} * layout.head_dim;
  ASSIGN_OR_RETURN(
      const Timing timing,
      TimeGraph(device, *stream, layers, size.repetitions, [&]() -> absl::Status {
        for (int layer = 0; layer < layers; ++layer) {
          const DeviceAttention attention{.layout = layout,
                                          .q_heads = q_heads,
                                          .kv_head_of_q = kv_head_there.as<int32_t>(),
                                          .scale = 0.1f,
                                          .cache = cache.data() + layer * layer_bytes,
                                          .scratch = scratch.data(),
                                          .max_context = context};
          RETURN_IF_ERROR(kernels.Attend(attention, q_there.as<float>(), width, out.as<float>(),
                                         width, tokens, sequences, *stream));
        }
        return absl::OkStatus();
      }));
  return Line(
      absl::StrCat("attention ", KvTypeName(layout.type), " ", q_heads, "/", layout.kv_heads,
                   " heads of ", layout.head_dim, ", ", sequences, " sequences of ", context),
      layer_bytes, timing, copy_rate);
}

std::string RooflineHead() { return "what\tbytes\tus\tGB/s\tshare\tspread"; }

std::string RooflineText(const RooflineLine& line) {
  return absl::StrFormat("%s\t%d\t%.1f\t%.0f\t%.3f\t%.3f", line.what, line.bytes,
                         line.seconds * 1e6, static_cast<double>(line.bytes) / line.seconds / 1e9,
                         line.share, line.spread);
}

}  // namespace bitshard
