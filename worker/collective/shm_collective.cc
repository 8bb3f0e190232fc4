#include "worker/collective/shm_collective.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "worker/collective/add.h"

namespace bitshard {
namespace {

constexpr size_t kPieceValues = kShmStagingBytes / sizeof(int64_t);
// Where two short rounds beat one in which everyone reads everything; measured with
// tests/bench/worker/collective_bench.
constexpr size_t kScatterBytes = size_t{32} << 10;

}  // namespace

ShmCollective::ShmCollective(std::unique_ptr<ShmSegment> segment, ShmView view, int rank,
                             std::function<bool(int)> alive)
    : segment_(std::move(segment)), exchange_(view, rank, std::move(alive)) {}

ShmCollective::~ShmCollective() { exchange_.Leave(); }

absl::Status ShmCollective::AllReduceSum(absl::Span<int64_t> values) {
  RETURN_IF_ERROR(exchange_.Begin());
  const Operation op{.kind = OperationKind::kAllReduce, .bytes = values.size() * sizeof(int64_t)};
  size_t done = 0;
  do {  // an empty message meets too: the ranks agree that it is empty
    const auto piece = values.subspan(done, kPieceValues);
    const bool small = world() == 2 ? piece.size() * sizeof(int64_t) <= 2 * kScatterBytes
                                    : piece.size() * sizeof(int64_t) <= kScatterBytes;
    RETURN_IF_ERROR(small ? ReduceSmall(piece, op) : ReduceBig(piece, op));
    done += piece.size();
  } while (done < values.size());
  return absl::OkStatus();
}

absl::Status ShmCollective::ReduceSmall(absl::Span<int64_t> piece, const Operation& op) {
  Copy(exchange_.Stage(), piece.data(), piece.size() * sizeof(int64_t));
  RETURN_IF_ERROR(exchange_.Meet(op));
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) AddTo(piece.data(), exchange_.Of(r), piece.size());
  }
  return absl::OkStatus();
}

absl::Status ShmCollective::ReduceBig(absl::Span<int64_t> piece, const Operation& op) {
  // Slices are whole cache lines: no two ranks write one line.
  const size_t slice = (piece.size() / world() + 8) / 8 * 8;
  const auto begin = [&](int r) { return std::min(piece.size(), r * slice); };
  const auto count = [&](int r) { return std::min(piece.size(), (r + 1) * slice) - begin(r); };

  uint8_t* stage = exchange_.Stage();
  for (int r = 0; r < world(); ++r) {
    if (r == rank()) continue;  // nobody else reads my own slice
    Copy(stage + begin(r) * sizeof(int64_t), piece.data() + begin(r), count(r) * sizeof(int64_t));
  }
  RETURN_IF_ERROR(exchange_.Meet(op));
  const size_t my_begin = begin(rank()), my_count = count(rank());
  int64_t* sum = piece.data() + my_begin;
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) AddTo(sum, exchange_.Of(r) + my_begin * sizeof(int64_t), my_count);
  }
  Copy(exchange_.Stage(), sum, my_count * sizeof(int64_t));
  RETURN_IF_ERROR(exchange_.Meet(op));
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) Copy(piece.data() + begin(r), exchange_.Of(r), count(r) * sizeof(int64_t));
  }
  return absl::OkStatus();
}

absl::Status ShmCollective::AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) {
  CHECK_EQ(all.size(), mine.size() * world());
  RETURN_IF_ERROR(exchange_.Begin());
  const Operation op{.kind = OperationKind::kAllGather, .bytes = mine.size()};
  size_t done = 0;
  do {
    const auto piece = mine.subspan(done, kShmStagingBytes);
    Copy(exchange_.Stage(), piece.data(), piece.size());
    RETURN_IF_ERROR(exchange_.Meet(op));
    for (int r = 0; r < world(); ++r) {
      const void* from = r == rank() ? piece.data() : exchange_.Of(r);
      Copy(all.data() + r * mine.size() + done, from, piece.size());
    }
    done += piece.size();
  } while (done < mine.size());
  return absl::OkStatus();
}

absl::Status ShmCollective::Broadcast(absl::Span<uint8_t> data, int root) {
  CHECK(root >= 0 && root < world()) << "root " << root << " of " << world();
  RETURN_IF_ERROR(exchange_.Begin());
  const Operation op{.kind = OperationKind::kBroadcast, .root = root, .bytes = data.size()};
  size_t done = 0;
  do {
    const auto piece = data.subspan(done, kShmStagingBytes);
    if (rank() == root) Copy(exchange_.Stage(), piece.data(), piece.size());
    RETURN_IF_ERROR(exchange_.Meet(op));
    if (rank() != root) Copy(piece.data(), exchange_.Of(root), piece.size());
    done += piece.size();
  } while (done < data.size());
  return absl::OkStatus();
}

}  // namespace bitshard
