// Attention of decodes and of prompts: see roofline.h.
#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"
#include "tests/gpu/roofline.h"
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

}  // namespace

absl::StatusOr<RooflineLine> MeasureAttention(Device& device, const AttentionRoofline& of,
                                              const Ceilings& ceilings, const RooflineSize& size) {
  const DeviceKernels& kernels = *device.kernels();
  const KvLayout& layout = of.layout;
  const int q_heads = of.q_heads, sequences = of.sequences;
  const int64_t context = of.context, m = sequences * of.tokens;
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  const int64_t blocks_each = (context + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t blocks = blocks_each * sequences, layer_bytes = blocks * layout.block_bytes();
  const int layers = static_cast<int>(size.rotate_bytes / layer_bytes) + 1;
  ASSIGN_OR_RETURN(const DeviceBuffer cache, device.Alloc(layers * layer_bytes));
  RETURN_IF_ERROR(FillWithNumbers(device, cache, *stream));

  std::vector<int32_t> token(m), position(m), row(m), begin(sequences);
  for (int64_t i = 0; i < m; ++i) {
    position[i] = static_cast<int32_t>(context - of.tokens + i % of.tokens);
    row[i] = static_cast<int32_t>(i / of.tokens);
  }
  for (int i = 0; i < sequences; ++i) begin[i] = static_cast<int32_t>(i * blocks_each);
  std::vector<uint32_t> block(blocks);
  for (int64_t i = 0; i < blocks; ++i) block[i] = static_cast<uint32_t>(i * 5 % blocks);  // a walk
  if (blocks % 5 == 0) {
    for (int64_t i = 0; i < blocks; ++i) block[i] = static_cast<uint32_t>(blocks - 1 - i);
  }
  std::vector<int32_t> kv_head(q_heads);
  for (int h = 0; h < q_heads; ++h) kv_head[h] = h * layout.kv_heads / q_heads;
  const std::vector<float> q =
      RandomFloats(static_cast<size_t>(m) * q_heads * layout.head_dim, /*seed=*/5);
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
  ASSIGN_OR_RETURN(const DeviceBuffer scratch,
                   device.Alloc(kernels.AttentionScratchBytes(layout, q_heads, m, context)));

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
                                      .scratch_bytes = scratch.bytes(),
                                      .max_context = context,
                                      .deterministic = of.deterministic};
      RETURN_IF_ERROR(kernels.Attend(attention, q_there.as<float>(), width, out.as<float>(), width,
                                     tokens, m, *stream));
    }
    return absl::OkStatus();
  };
  RooflineLine line;
  line.what =
      absl::StrCat("attention ", KvTypeName(layout.type), " ", q_heads, "/", layout.kv_heads,
                   " heads of ", layout.head_dim, ", ", sequences, " sequences of ", context);
  if (of.tokens > 1) absl::StrAppend(&line.what, ", the last ", of.tokens, " tokens");
  if (!of.deterministic) absl::StrAppend(&line.what, " any order");
  line.bytes = layer_bytes;
  // A product with each key and each value that a token sees.
  const double seen = static_cast<double>(context) - 0.5 * static_cast<double>(of.tokens - 1);
  line.flops = 4.0 * static_cast<double>(m * q_heads * layout.head_dim) * seen;
  if (of.tokens > 1) line.bytes += 2 * q_there.bytes();
  if (of.tokens == 1 && line.bytes >= kBarBytes) line.bar = kAttentionBar;
  return TimeLine(device, *stream, std::move(line), layers, ceilings, size, enqueue);
}

}  // namespace bitshard
