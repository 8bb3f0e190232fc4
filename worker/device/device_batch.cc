#include "worker/device/device_batch.h"

#include <algorithm>

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
  std::unique_ptr<DeviceBatch> batch(new DeviceBatch(reinterpret_cast<int32_t*>(device)));
  for (Side& side : batch->sides_) {
    ASSIGN_OR_RETURN(side.host, bind.Pinned(count * sizeof(int32_t)));
  }
  return batch;
}

void DeviceBatch::Fill(const StepState& step, int64_t m) {
  const int64_t count = step.count();
  DCHECK(count <= m);
  Side& side = Unsent();
  int32_t* const all = side.host.as<int32_t>();
  std::copy_n(step.tokens.data(), count, all + kToken * m);
  std::fill_n(all + kToken * m + count, m - count, 0);
  std::copy_n(step.positions.data(), count, all + kPosition * m);
  std::fill_n(all + kPosition * m + count, m - count, kPadding);
  std::fill_n(all + kRow * m, m, 0);
  std::fill_n(all + kBlockBegin * m, m, 0);
  int32_t* const blocks = all + kBlocks * m;
  int64_t at = 0;
  side.positions = 0;
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const AttentionRow& row = step.rows[r];
    std::fill_n(all + kRow * m + row.first_row, row.tokens, static_cast<int32_t>(r));
    all[kBlockBegin * m + static_cast<int64_t>(r)] = static_cast<int32_t>(at);
    const int64_t end = row.start + row.tokens;
    const int64_t held = (end + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int64_t b = 0; b < held; ++b) blocks[at++] = static_cast<int32_t>(row.blocks[b]);
    side.positions = std::max(side.positions, end);
  }
  side.index_at = kBlocks * m + at;
  int32_t* index = all + side.index_at;
  index = std::copy(step.sampled.begin(), step.sampled.end(), index);
  for (const ScoredToken& token : step.scored) *index++ = static_cast<int32_t>(token.row);
  side.end = index - all;
}

void DeviceBatch::FillTokens(const StepState& step) {
  static_assert(kToken == 0, "for any m");
  std::copy(step.tokens.begin(), step.tokens.end(), Unsent().host.as<int32_t>());
}

void DeviceBatch::FillPadding(int64_t m, int64_t sampled) {
  Side& side = Unsent();
  int32_t* const all = side.host.as<int32_t>();
  std::fill_n(all, kBlocks * m + 1 + sampled, 0);  // a block, the sampled rows
  std::fill_n(all + kPosition * m, m, kPadding);
  side.index_at = kBlocks * m + 1;
  side.end = side.index_at + sampled;
  side.positions = 0;
}

absl::Status DeviceBatch::Send(Device& device, DeviceStream& stream) {
  sent_ = 1 - sent_;
  const Side& side = sides_[sent_];
  return device.Copy(device_, side.host.data(), static_cast<size_t>(side.end) * sizeof(int32_t),
                     stream);
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
