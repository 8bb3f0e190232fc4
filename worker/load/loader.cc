#include "worker/load/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/tensor/packed_sizes.h"
#include "kernels/tensor/synthetic.h"
#include "worker/load/load_plan.h"

namespace bitshard {
namespace {

using Clock = std::chrono::steady_clock;

// All threads' strips together. Far below the 64 MiB that loading may take above the weights.
constexpr uint64_t kStripBytesTotal = 24 << 20;
// One read: long enough for any disk, short enough for the cache. Longer rows are read whole.
constexpr uint64_t kMaxStripBytes = 1 << 20;
// A piece of work for one thread, so that threads end together and progress moves.
constexpr uint64_t kChunkBytes = 4 << 20;
// Formats need none; copies are faster so.
constexpr uint64_t kPartAlignment = 64;

// Rows [row_begin, row_end) of a rank's tensor: whole row tiles, which no other thread touches.
struct Chunk {
  const CheckedTensor* tensor = nullptr;
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
};

// What the progress counts: bytes read, or made of a synthetic weight.
uint64_t WorkBytes(const CheckedTensor& tensor) {
  return tensor.parts.empty() ? tensor.arena_bytes : tensor.read_bytes;
}

// Of a row, about: of some parts rows share words.
uint64_t RowBytes(const CheckedTensor& tensor) {
  return std::max<uint64_t>(1, WorkBytes(tensor) / tensor.slice.rows());
}

PackedSpec SpecOf(const CheckedTensor& tensor) {
  return tensor.format->Canonical(tensor.source_cols, tensor.slice);
}

// A run of the rank's rows as a slice of the whole weight.
MatrixSlice RowsOf(const CheckedTensor& tensor, uint64_t row, uint64_t rows) {
  MatrixSlice slice = tensor.slice;
  slice.row_begin += row;
  slice.row_end = slice.row_begin + rows;
  return slice;
}

std::vector<Chunk> CutIntoChunks(absl::Span<const CheckedTensor> tensors) {
  std::vector<Chunk> chunks;
  for (const CheckedTensor& tensor : tensors) {
    const uint64_t rows = tensor.slice.rows();
    const uint64_t chunk_rows =
        RoundUp(std::clamp<uint64_t>(kChunkBytes / RowBytes(tensor), 1, rows), kTileRows);
    for (uint64_t row = 0; row < rows; row += chunk_rows) {
      chunks.push_back({&tensor, row, std::min(row + chunk_rows, rows)});
    }
  }
  return chunks;
}

// What tiles have beyond the matrix's own rows and columns.
uint64_t PaddingBytes(const PackedSpec& spec) {
  const auto sizes = SizesOf(spec);
  CHECK_OK(sizes.status());  // the plan was checked
  const bool is_int = spec.type == PackedSpec::Type::kInt;
  const uint64_t rows = spec.rows, cols = spec.cols;
  const uint64_t tile_rows = RoundUp(rows, kTileRows);
  const uint64_t tile_cols = RoundUp(cols, is_int ? kTileCols : kLaneCols);
  const uint64_t codes = sizes->code_bytes;
  const uint64_t bits_a_value = 8 * codes / (tile_rows * tile_cols);
  const uint64_t own_codes = rows * cols * bits_a_value / 8;
  const uint64_t scales = sizes->scale_bytes + sizes->nested_bytes;
  // Scales that rows share have none for padded rows.
  const uint64_t own_scales = spec.block_rows == 1 ? scales * rows / tile_rows : scales;
  return codes - own_codes + scales - own_scales;
}

class Loader {
 public:
  Loader(const CheckedLoadPlan& plan, const internal::ModelGraph& graph, ThreadPool& pool,
         const LoadProgressFn& progress)
      : plan_(plan),
        graph_(graph),
        pool_(pool),
        progress_(progress),
        strip_bytes_(
            std::min(kMaxStripBytes, kStripBytesTotal / static_cast<uint64_t>(pool.threads()))),
        strips_(static_cast<size_t>(pool.threads())),
        result_(std::make_shared<LoadedWeights>()),
        builders_(static_cast<size_t>(graph.weights_size())) {
    result_->matrices.resize(builders_.size());
    result_->vectors.resize(builders_.size());
    for (const CheckedTensor& tensor : plan.tensors) total_bytes_ += WorkBytes(tensor);
  }

  absl::StatusOr<std::shared_ptr<const LoadedWeights>> Load(WeightSink* sink) {
    if (progress_) progress_(0, total_bytes_);
    if (sink == nullptr) {
      RETURN_IF_ERROR(LoadAll());
    } else {
      RETURN_IF_ERROR(LoadAway(*sink));
    }
    result_->read_us = static_cast<uint64_t>(read_ns_ / 1000);
    result_->pack_us = static_cast<uint64_t>(pack_ns_ / 1000);
    absl::MutexLock lock(&mu_);
    if (!plan_.synthetic_seed) result_->read_bytes = done_bytes_;
    return std::shared_ptr<const LoadedWeights>(std::move(result_));
  }

 private:
  // Into one arena.
  absl::Status LoadAll() {
    uint64_t arena_bytes = 0;
    for (const CheckedTensor& tensor : plan_.tensors) {
      if (tensor.is_matrix) arena_bytes += tensor.arena_bytes + PackedMatrixBuilder::kArenaSlack;
    }
    result_->arena = std::make_unique<MemoryArena>(MemoryPart::kWeights, arena_bytes);
    RETURN_IF_ERROR(LoadTensors(plan_.tensors, result_->arena.get()));
    for (const CheckedTensor& tensor : plan_.tensors) {
      if (!tensor.is_matrix) continue;
      result_->matrices[tensor.weight] = std::move(*builders_[tensor.weight]).Build();
      result_->padding_bytes += PaddingBytes(SpecOf(tensor));
    }
    // Pages that hold nothing but padding too: no step meets a page for the first time.
    result_->arena->Touch();
    result_->arena_bytes = plan_.arena_bytes;
    return absl::OkStatus();
  }

  // One matrix after the other to the sink.
  absl::Status LoadAway(WeightSink& sink) {
    result_->moved.resize(builders_.size());
    for (const CheckedTensor& tensor : plan_.tensors) {
      const PackedSpec spec = SpecOf(tensor);
      uint64_t bytes = 0;
      if (tensor.is_matrix && plan_.synthetic_seed) {
        ASSIGN_OR_RETURN(bytes, sink.Make(tensor.weight, spec, SourceOf(tensor)));
        AddDone(WorkBytes(tensor));
      } else {
        RETURN_IF_ERROR(LoadTensors(absl::MakeConstSpan(&tensor, 1), /*arena=*/nullptr));
        if (!tensor.is_matrix) continue;
        const PackedMatrix matrix = std::move(*builders_[tensor.weight]).Build();
        builders_[tensor.weight].reset();
        ASSIGN_OR_RETURN(bytes, sink.Take(tensor.weight, matrix));
      }
      result_->moved[tensor.weight] = {spec, bytes};
      result_->arena_bytes += bytes;
      result_->padding_bytes += PaddingBytes(spec);
    }
    result_->arena_bytes += result_->vector_bytes;
    ASSIGN_OR_RETURN(result_->device, sink.Finish(result_->vectors));
    return absl::OkStatus();
  }

  absl::Status LoadTensors(absl::Span<const CheckedTensor> tensors, MemoryArena* arena) {
    for (const CheckedTensor& tensor : tensors) {
      if (tensor.is_matrix) {
        builders_[tensor.weight] = std::make_unique<PackedMatrixBuilder>(SpecOf(tensor), arena);
      } else {
        result_->vectors[tensor.weight].resize(tensor.slice.cols());
        result_->vector_bytes += tensor.arena_bytes;
      }
    }
    const std::vector<Chunk> chunks = CutIntoChunks(tensors);
    pool_.ParallelFor(static_cast<int64_t>(chunks.size()), [&](int64_t i, int thread) {
      if (failed_.load(std::memory_order_relaxed)) return;
      const Chunk& chunk = chunks[static_cast<size_t>(i)];
      if (plan_.synthetic_seed) return MakeChunk(chunk);
      const absl::Status status = LoadChunk(chunk, strips_[static_cast<size_t>(thread)]);
      if (!status.ok()) Fail(chunk, status);
    });
    absl::MutexLock lock(&mu_);
    return error_;
  }

  SyntheticSource SourceOf(const CheckedTensor& tensor) const {
    return SyntheticSourceOf(*plan_.synthetic_seed, NameOf(tensor), SpecOf(tensor),
                             tensor.source_cols, tensor.slice.row_begin, tensor.slice.col_begin);
  }

  const std::string& NameOf(const CheckedTensor& tensor) const {
    return graph_.weights(static_cast<int>(tensor.weight)).name();
  }

  void MakeChunk(const Chunk& chunk) {
    const CheckedTensor& tensor = *chunk.tensor;
    const Clock::time_point begin = Clock::now();
    if (tensor.is_matrix) {
      FillSyntheticRows(SourceOf(tensor), chunk.row_begin, chunk.row_end,
                        *builders_[tensor.weight]);
    } else {
      FillSyntheticVector(*plan_.synthetic_seed, NameOf(tensor), tensor.slice.col_begin,
                          tensor.slice.cols(), result_->vectors[tensor.weight].data());
    }
    pack_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
    const uint64_t rows = tensor.slice.rows();
    AddDone(WorkBytes(tensor) * chunk.row_end / rows - WorkBytes(tensor) * chunk.row_begin / rows);
  }

  void AddDone(uint64_t bytes) {
    absl::MutexLock lock(&mu_);
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  absl::Status LoadChunk(const Chunk& chunk, std::vector<uint8_t>& strip) {
    const CheckedTensor& tensor = *chunk.tensor;
    const uint64_t strip_rows =
        std::clamp<uint64_t>(strip_bytes_ / RowBytes(tensor), 1, chunk.row_end - chunk.row_begin);
    std::vector<absl::Span<const uint8_t>> parts(tensor.parts.size());
    for (uint64_t row = chunk.row_begin; row < chunk.row_end; row += strip_rows) {
      const uint64_t rows = std::min(strip_rows, chunk.row_end - row);
      const Clock::time_point begin = Clock::now();
      RETURN_IF_ERROR(ReadStrip(tensor, row, rows, strip, parts));
      const Clock::time_point have = Clock::now();
      if (tensor.is_matrix) {
        RETURN_IF_ERROR(tensor.format->ToCanonical(
            parts, tensor.source_cols, RowsOf(tensor, row, rows), row, *builders_[tensor.weight]));
      } else {
        RETURN_IF_ERROR(LoadVector(tensor, parts));
      }
      read_ns_ += std::chrono::nanoseconds(have - begin).count();
      pack_ns_ += std::chrono::nanoseconds(Clock::now() - have).count();
      AddDone(BytesUpTo(tensor, row + rows) - BytesUpTo(tensor, row));
    }
    return absl::OkStatus();
  }

  // parts[i] becomes the bytes of part i for these rows of the rank, all in `strip`.
  static absl::Status ReadStrip(const CheckedTensor& tensor, uint64_t row, uint64_t rows,
                                std::vector<uint8_t>& strip,
                                std::vector<absl::Span<const uint8_t>>& parts) {
    const MatrixSlice slice = RowsOf(tensor, row, rows);
    std::vector<PartSlice> reads(parts.size());
    size_t bytes = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      reads[i] = tensor.format->SliceOfPart(i, tensor.source_cols, slice);
      bytes += RoundUp(reads[i].bytes(), kPartAlignment);
    }
    if (strip.size() < bytes) strip.resize(bytes);
    uint8_t* next = strip.data();
    for (size_t i = 0; i < parts.size(); ++i) {
      const CheckedPart& part = tensor.parts[i];
      const absl::Span<uint8_t> out(next, reads[i].bytes());
      const uint64_t rows_before = reads[i].row_begin - part.slice.row_begin;
      RETURN_IF_ERROR(part.reader.Read(rows_before * part.slice.row_bytes(), out));
      parts[i] = out;
      next += RoundUp(out.size(), kPartAlignment);
    }
    return absl::OkStatus();
  }

  // What the rank's first `rows` rows need. A word that straddles two strips is read with both and
  // counts once.
  static uint64_t BytesUpTo(const CheckedTensor& tensor, uint64_t rows) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      bytes += tensor.format->SliceOfPart(i, tensor.source_cols, RowsOf(tensor, 0, rows)).bytes();
    }
    return bytes;
  }

  // Vectors are short: packed like a matrix of one row, then taken out as f32.
  absl::Status LoadVector(const CheckedTensor& tensor,
                          const std::vector<absl::Span<const uint8_t>>& parts) {
    PackedMatrixBuilder builder(SpecOf(tensor));
    RETURN_IF_ERROR(
        tensor.format->ToCanonical(parts, tensor.source_cols, tensor.slice, 0, builder));
    std::move(builder).Build().RowToF32(0, result_->vectors[tensor.weight].data());
    return absl::OkStatus();
  }

  void Fail(const Chunk& chunk, const absl::Status& status) {
    failed_.store(true, std::memory_order_relaxed);
    absl::MutexLock lock(&mu_);
    if (!error_.ok()) return;
    const CheckedTensor& tensor = *chunk.tensor;
    const internal::PartLoad& part = tensor.load->parts(0);
    error_ = absl::Status(status.code(),
                          absl::StrCat("tensor ", part.source_name(), " rows [",
                                       tensor.slice.row_begin + chunk.row_begin, ", ",
                                       tensor.slice.row_begin + chunk.row_end, ") of ",
                                       plan_.files[part.file()].path(), ": ", status.message()));
  }

  const CheckedLoadPlan& plan_;
  const internal::ModelGraph& graph_;
  ThreadPool& pool_;
  const LoadProgressFn& progress_;
  const uint64_t strip_bytes_;
  std::vector<std::vector<uint8_t>> strips_;  // by thread
  std::shared_ptr<LoadedWeights> result_;
  std::vector<std::unique_ptr<PackedMatrixBuilder>> builders_;  // by weight
  uint64_t total_bytes_ = 0;                                    // WorkBytes of all
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> read_ns_{0}, pack_ns_{0};
  absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  uint64_t done_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedWeights>> LoadWeights(const internal::RankPlan& plan,
                                                                 ThreadPool& pool,
                                                                 const LoadProgressFn& progress,
                                                                 uint64_t max_arena_bytes,
                                                                 WeightSink* sink) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckedLoadPlan> checked, CheckLoadPlan(plan));
  if (checked->arena_bytes > max_arena_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("rank %d: its weights take %d bytes (%.4g GiB), this worker may use %d "
                        "(%.4g GiB); raise --memory, use more workers or a narrower weight format",
                        plan.rank(), checked->arena_bytes, Gib(checked->arena_bytes),
                        max_arena_bytes, Gib(max_arena_bytes)));
  }
  return Loader(*checked, plan.graph(), pool, progress).Load(sink);
}

}  // namespace bitshard
