#include "worker/device/device_batch.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {
namespace {

// The places of [m] arrays.
enum : int64_t { kToken = 0, kPosition = 1, kRow = 2, kBlockBegin = 3, kBlocks = 4 };

constexpr int32_t kPadding = -1;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Create(const Limits& limits,
                                                                 DeviceBindContext& bind) {
  const uint64_t tokens = static_cast<uint64_t>(limits.tokens);
  const uint64_t blocks = static_cast<uint64_t>(limits.rows) *
                          CeilDiv(static_cast<uint64_t>(limits.context), kKvBlockTokens);
  // Padding has a block table of one entry.
  const uint64_t count = kBlocks * tokens + std::max<uint64_t>(1, blocks) +
                         static_cast<uint64_t>(limits.outputs) + tokens;
  ASSIGN_OR_RETURN(uint8_t* const device, bind.Scratch(count * sizeof(int32_t)));
  ASSIGN_OR_RETURN(DeviceBuffer host, bind.Pinned(count * sizeof(int32_t)));
  return std::unique_ptr<DeviceBatch>(
      new DeviceBatch(std::move(host), reinterpret_cast<int32_t*>(device)));
}

void DeviceBatch::Fill(const StepState& step, int64_t m) {
  const int64_t count = step.count();
  DCHECK(count <= m);
  int32_t* const all = host_.as<int32_t>();
  std::copy_n(step.tokens.data(), count, all + kToken * m);
  std::fill_n(all + kToken * m + count, m - count, 0);
  std::copy_n(step.positions.data(), count, all + kPosition * m);
  std::fill_n(all + kPosition * m + count, m - count, kPadding);
  std::fill_n(all + kRow * m, m, 0);
  std::fill_n(all + kBlockBegin * m, m, 0);
  int32_t* const blocks = all + kBlocks * m;
  int64_t at = 0;
  positions_ = 0;
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const AttentionRow& row = step.rows[r];
    std::fill_n(all + kRow * m + row.first_row, row.tokens, static_cast<int32_t>(r));
    all[kBlockBegin * m + static_cast<int64_t>(r)] = static_cast<int32_t>(at);
    const int64_t end = row.start + row.tokens;
    const int64_t held = (end + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int64_t b = 0; b < held; ++b) blocks[at++] = static_cast<int32_t>(row.blocks[b]);
    positions_ = std::max(positions_, end);
  }
  index_at_ = kBlocks * m + at;
  int32_t* index = all + index_at_;
  index = std::copy(step.sampled.begin(), step.sampled.end(), index);
  for (const ScoredToken& token : step.scored) *index++ = static_cast<int32_t>(token.row);
  end_ = index - all;
}

void DeviceBatch::FillPadding(int64_t m, int64_t sampled) {
  int32_t* const all = host_.as<int32_t>();
  std::fill_n(all, kBlocks * m + 1 + sampled, 0);  // a block, the sampled rows
  std::fill_n(all + kPosition * m, m, kPadding);
  index_at_ = kBlocks * m + 1;
  end_ = index_at_ + sampled;
  positions_ = 0;
}

absl::Status DeviceBatch::Send(Device& device, DeviceStream& stream) const {
  return device.Copy(device_, host_.data(), static_cast<size_t>(end_) * sizeof(int32_t), stream);
}

DeviceTokens DeviceBatch::Tokens(int64_t m) const {
  DeviceTokens tokens;
  tokens.token = device_ + kToken * m;
  tokens.position = device_ + kPosition * m;
  tokens.row = device_ + kRow * m;
  tokens.block_begin = device_ + kBlockBegin * m;
  tokens.blocks = reinterpret_cast<const uint32_t*>(device_ + kBlocks * m);
  return tokens;
}

}  // namespace bitshard
