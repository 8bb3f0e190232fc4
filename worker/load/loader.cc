#include "worker/load/loader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "worker/load/load_plan.h"

namespace bitshard {
namespace {

// All threads' strips together. Far below the 64 MiB that loading may take above the weights.
constexpr uint64_t kStripBytesTotal = 24 << 20;
// One read: long enough for any disk, short enough for the cache. Longer rows are read whole.
constexpr uint64_t kMaxStripBytes = 1 << 20;
// A piece of work for one thread, so that threads end together and progress moves.
constexpr uint64_t kChunkBytes = 4 << 20;

// Rows [row_begin, row_end) of one tensor: whole row tiles, which no other thread touches.
struct Chunk {
  const CheckedTensor* tensor = nullptr;
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
};

std::vector<Chunk> CutIntoChunks(const CheckedLoadPlan& plan) {
  std::vector<Chunk> chunks;
  for (const CheckedTensor& tensor : plan.tensors) {
    const uint64_t rows = RoundUp(
        std::clamp<uint64_t>(kChunkBytes / std::max<uint64_t>(1, tensor.row_bytes), 1, tensor.rows),
        kTileRows);
    for (uint64_t row = 0; row < tensor.rows; row += rows) {
      chunks.push_back({&tensor, row, std::min(row + rows, tensor.rows)});
    }
  }
  return chunks;
}

class Loader {
 public:
  Loader(const CheckedLoadPlan& plan, size_t weights, ThreadPool& pool,
         const LoadProgressFn& progress)
      : plan_(plan),
        pool_(pool),
        progress_(progress),
        strip_bytes_(
            std::min(kMaxStripBytes, kStripBytesTotal / static_cast<uint64_t>(pool.threads()))),
        strips_(static_cast<size_t>(pool.threads())),
        result_(std::make_shared<LoadedWeights>()),
        builders_(weights) {
    result_->matrices.resize(weights);
    result_->vectors.resize(weights);
  }

  absl::StatusOr<std::shared_ptr<const LoadedWeights>> Load() {
    for (const CheckedTensor& tensor : plan_.tensors) {
      if (tensor.is_matrix) {
        builders_[tensor.weight] = std::make_unique<PackedMatrixBuilder>(
            tensor.format->Canonical(tensor.rows, tensor.columns));
      } else {
        result_->vectors[tensor.weight].resize(tensor.columns.cols());
      }
    }
    const std::vector<Chunk> chunks = CutIntoChunks(plan_);
    if (progress_) progress_(0, plan_.read_bytes);
    pool_.ParallelFor(static_cast<int64_t>(chunks.size()), [&](int64_t i, int thread) {
      if (failed_.load(std::memory_order_relaxed)) return;
      const Chunk& chunk = chunks[static_cast<size_t>(i)];
      const absl::Status status = LoadChunk(chunk, strips_[static_cast<size_t>(thread)]);
      if (!status.ok()) Fail(chunk, status);
    });
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(error_);
    for (const CheckedTensor& tensor : plan_.tensors) {
      if (!tensor.is_matrix) continue;
      result_->matrices[tensor.weight] = std::move(*builders_[tensor.weight]).Build();
    }
    result_->arena_bytes = plan_.arena_bytes;
    result_->read_bytes = done_bytes_;
    return std::shared_ptr<const LoadedWeights>(std::move(result_));
  }

 private:
  absl::Status LoadChunk(const Chunk& chunk, std::vector<uint8_t>& strip) {
    const CheckedTensor& tensor = *chunk.tensor;
    const uint64_t strip_rows = std::clamp<uint64_t>(
        strip_bytes_ / std::max<uint64_t>(1, tensor.row_bytes), 1, chunk.row_end - chunk.row_begin);
    for (uint64_t row = chunk.row_begin; row < chunk.row_end; row += strip_rows) {
      const uint64_t rows = std::min(strip_rows, chunk.row_end - row);
      const size_t bytes = static_cast<size_t>(rows * tensor.row_bytes);
      if (strip.size() < bytes) strip.resize(bytes);
      const absl::Span<uint8_t> data(strip.data(), bytes);
      RETURN_IF_ERROR(tensor.reader.Read(row * tensor.row_bytes, data));
      if (tensor.is_matrix) {
        RETURN_IF_ERROR(
            tensor.format->ToCanonical(data, row, rows, tensor.columns, *builders_[tensor.weight]));
      } else {
        std::vector<float> values(tensor.columns.read_cols());
        tensor.format->Decode(data, /*rows=*/1, tensor.columns.read_cols(), values.data());
        const float* first = values.data() + (tensor.columns.begin - tensor.columns.read_begin);
        std::copy_n(first, tensor.columns.cols(), result_->vectors[tensor.weight].data());
      }
      absl::MutexLock lock(&mu_);
      done_bytes_ += bytes;
      if (progress_) progress_(done_bytes_, plan_.read_bytes);
    }
    return absl::OkStatus();
  }

  void Fail(const Chunk& chunk, const absl::Status& status) {
    failed_.store(true, std::memory_order_relaxed);
    absl::MutexLock lock(&mu_);
    if (!error_.ok()) return;
    const CheckedTensor& tensor = *chunk.tensor;
    error_ =
        absl::Status(status.code(),
                     absl::StrCat("tensor ", tensor.load->source_name(), " rows [",
                                  tensor.load->row_begin() + chunk.row_begin, ", ",
                                  tensor.load->row_begin() + chunk.row_end, ") of ",
                                  plan_.files[tensor.load->file()].path(), ": ", status.message()));
  }

  const CheckedLoadPlan& plan_;
  ThreadPool& pool_;
  const LoadProgressFn& progress_;
  const uint64_t strip_bytes_;
  std::vector<std::vector<uint8_t>> strips_;  // by thread
  std::shared_ptr<LoadedWeights> result_;
  std::vector<std::unique_ptr<PackedMatrixBuilder>> builders_;  // by weight
  std::atomic<bool> failed_{false};
  absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  uint64_t done_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedWeights>> LoadWeights(const internal::RankPlan& plan,
                                                                 ThreadPool& pool,
                                                                 const LoadProgressFn& progress,
                                                                 uint64_t max_arena_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckedLoadPlan> checked, CheckLoadPlan(plan));
  if (checked->arena_bytes > max_arena_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", plan.rank(), ": its weights take ", checked->arena_bytes,
                     " bytes, this worker may use ", max_arena_bytes,
                     "; raise --memory, use more workers or a narrower weight format"));
  }
  return Loader(*checked, static_cast<size_t>(plan.graph().weights_size()), pool, progress).Load();
}

}  // namespace bitshard
