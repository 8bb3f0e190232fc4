#include "tests/gpu/roofline.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device_matrix.h"
#include "tests/gpu/timing.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// What is read is random, and as each cache type has it: bf16, f16, f32 and fp8 numbers of ordinary
// size.
absl::Status FillWithNumbers(Device& device, const DeviceBuffer& buffer, DeviceStream& stream) {
  std::mt19937 rng(17);
  std::vector<uint8_t> bytes(std::min<size_t>(buffer.bytes(), size_t{1} << 20));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(0x30 + rng() % 16);
  RETURN_IF_ERROR(device.Copy(buffer.data(), bytes.data(), bytes.size(), stream));
  for (size_t done = bytes.size(); done < buffer.bytes();) {
    const size_t more = std::min(done, buffer.bytes() - done);
    RETURN_IF_ERROR(device.Copy(buffer.data() + done, buffer.data(), more, stream));
    done += more;
  }
  return device.Sync(stream);
}

RooflineLine Line(std::string what, uint64_t bytes, double flops, const Timing& timing,
                  const Timing& again, const Ceilings& ceilings) {
  const double copies = static_cast<double>(bytes) / ceilings.copy_bytes_per_s;
  const double products = flops / ceilings.matrix_flops_per_s();
  return {.what = std::move(what),
          .bytes = bytes,
          .flops = flops,
          .seconds = timing.seconds,
          .again = again.seconds,
          .spread = timing.spread,
          .share = std::max(copies, products) / timing.seconds,
          .by_copies = copies >= products};
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
  ASSIGN_OR_RETURN(const DeviceBuffer there,
                   UploadBytes(device, bytes.data(), bytes.size(), stream));
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

absl::StatusOr<std::vector<RooflineLine>> MeasureLinear(Device& device, const PackedSpec& spec,
                                                        absl::Span<const int> ms,
                                                        const Ceilings& ceilings,
                                                        const RooflineSize& size) {
  if (spec.rows % kTileRows != 0 || spec.block_rows != 1 || spec.scale == ScaleKind::kNested)
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

  std::vector<RooflineLine> lines;
  for (const int m : ms) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(m * cols), /*seed=*/3);
    ASSIGN_OR_RETURN(const DeviceBuffer x_there,
                     UploadBytes(device, x.data(), x.size() * sizeof(float), *stream));
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
    const auto enqueue = [&]() -> absl::Status {
      for (const DeviceMatrix& matrix : matrices) {
        const DeviceLinear member{.w = &matrix, .y = y.as<float>(), .stride = rows};
        RETURN_IF_ERROR(kernels.Linear({&member, 1}, prepared, m, *stream));
      }
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(const Timing timing,
                     TimeGraph(device, *stream, copies, size.repetitions, enqueue));
    ASSIGN_OR_RETURN(const Timing again,
                     TimeGraph(device, *stream, copies, size.repetitions, enqueue));
    const uint64_t bytes = layout.bytes + 2 * m * cols + 4 * m * rows;
    const double flops = 2.0 * m * static_cast<double>(rows) * static_cast<double>(cols);
    lines.push_back(Line(absl::StrCat(spec.Describe(), " ", rows, "x", cols, " m=", m), bytes,
                         flops, timing, again, ceilings));
    if (m == 1 && layout.bytes >= kBarBytes) lines.back().bar = kVectorBar;
  }
  return lines;
}

absl::StatusOr<RooflineLine> MeasureAttention(Device& device, const KvLayout& layout, int q_heads,
                                              int sequences, int64_t context,
                                              const Ceilings& ceilings, const RooflineSize& size) {
  const DeviceKernels& kernels = *device.kernels();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  const int64_t blocks_each = (context + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t blocks = blocks_each * sequences, layer_bytes = blocks * layout.block_bytes();
  const int layers = static_cast<int>(size.rotate_bytes / layer_bytes) + 1;
  ASSIGN_OR_RETURN(const DeviceBuffer cache, device.Alloc(layers * layer_bytes));
  RETURN_IF_ERROR(FillWithNumbers(device, cache, *stream));

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
    return UploadBytes(device, values.data(), values.size() * sizeof(values[0]), *stream);
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
  const auto enqueue = [&]() -> absl::Status {
    for (int layer = 0; layer < layers; ++layer) {
      const DeviceAttention attention{.layout = layout,
                                      .q_heads = q_heads,
                                      .kv_head_of_q = kv_head_there.as<int32_t>(),
                                      .scale = 0.1f,
                                      .cache = cache.data() + layer * layer_bytes,
                                      .scratch = scratch.data(),
                                      .max_context = context};
      RETURN_IF_ERROR(kernels.Attend(attention, q_there.as<float>(), width, out.as<float>(), width,
                                     tokens, sequences, *stream));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const Timing timing,
                   TimeGraph(device, *stream, layers, size.repetitions, enqueue));
  ASSIGN_OR_RETURN(const Timing again,
                   TimeGraph(device, *stream, layers, size.repetitions, enqueue));
  // A product with each key and each value.
  const double flops = 4.0 * sequences * q_heads * layout.head_dim * static_cast<double>(context);
  RooflineLine line =
      Line(absl::StrCat("attention ", KvTypeName(layout.type), " ", q_heads, "/", layout.kv_heads,
                        " heads of ", layout.head_dim, ", ", sequences, " sequences of ", context),
           layer_bytes, flops, timing, again, ceilings);
  if (line.bytes >= kBarBytes) line.bar = kAttentionBar;
  return line;
}

std::string RooflineHead() {
  return "what\tbytes\tus\tagain us\tGB/s\tTFLOP/s\tshare\tof\tbar\tspread";
}

std::string RooflineText(const RooflineLine& line) {
  return absl::StrFormat(
      "%s\t%d\t%.1f\t%.1f\t%.0f\t%.1f\t%.3f\t%s\t%s\t%.3f", line.what, line.bytes,
      line.seconds * 1e6, line.again * 1e6, static_cast<double>(line.bytes) / line.seconds / 1e9,
      line.flops / line.seconds / 1e12, line.share, line.by_copies ? "copies" : "products",
      line.bar == 0 ? ""
                    : absl::StrFormat("%.2f%s", line.bar, line.share < line.bar ? " BELOW" : ""),
      line.spread);
}

RooflineVerdict JudgeRoofline(absl::Span<const RooflineLine> lines) {
  int with_bar = 0;
  RooflineVerdict verdict;
  const RooflineLine* worst = nullptr;
  for (const RooflineLine& line : lines) {
    if (line.bar == 0) continue;
    ++with_bar;
    if (line.share < line.bar) ++verdict.below;
    if (worst == nullptr || line.share / line.bar < worst->share / worst->bar) worst = &line;
  }
  verdict.text = absl::StrCat(lines.size(), " lines, ", verdict.below, " of ", with_bar,
                              " with a bar are below it");
  if (worst != nullptr)
    absl::StrAppend(&verdict.text,
                    absl::StrFormat("; the worst, %.3f: %s", worst->share, worst->what));
  return verdict;
}

}  // namespace bitshard
