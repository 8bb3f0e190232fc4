#include "coordinator/shard/load_plan.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

// The bytes of rows x [read_begin, read_end) as one range: a run of pieces, one a row, or one piece
// where rows touch.
internal::ByteRange RangeOf(const TensorInfo& tensor, const WeightFormat& format, const Run& rows,
                            const ColumnSlice& cols) {
  const uint64_t row_bytes = *format.RowBytes(tensor.cols);
  const uint64_t piece_bytes = *format.RowBytes(cols.read_cols());
  internal::ByteRange range;
  range.set_offset(tensor.offset + rows.begin * row_bytes + *format.RowBytes(cols.read_begin));
  if (piece_bytes == row_bytes || rows.size() == 1) {
    range.set_length(rows.size() * piece_bytes);
    range.set_stride(rows.size() * piece_bytes);
    range.set_count(1);
  } else {
    range.set_length(piece_bytes);
    range.set_stride(row_bytes);
    range.set_count(rows.size());
  }
  return range;
}

}  // namespace

absl::StatusOr<internal::LoadPlan> MakeLoadPlan(const internal::ModelGraph& graph,
                                                const TensorIndex& index, const RankCut& cut) {
  internal::LoadPlan plan;
  for (const CheckpointFile& file : index.files()) {
    internal::SourceFile* const source = plan.add_files();
    source->set_path(file.path);
    source->set_size_bytes(file.size_bytes);
  }
  uint64_t read_bytes = 0;
  for (int w = 0; w < graph.weights_size(); ++w) {
    const internal::Weight& weight = graph.weights(w);
    const TensorInfo* const tensor = index.Find(weight.name());
    if (tensor == nullptr || tensor->format != weight.format()) {
      return absl::InternalError(
          absl::StrCat("the graph's '", weight.name(), "' is not that of the tensor index"));
    }
    ASSIGN_OR_RETURN(const WeightFormat* const format, GetFormat(weight.format()));
    const auto [rows, cols] = cut.weights[w];
    const ColumnSlice slice = format->ReadColumns(cols.begin, cols.end);

    internal::TensorLoad* const load = plan.add_tensors();
    load->set_weight(static_cast<uint32_t>(w));
    load->set_source_name(tensor->source_name);
    load->set_file(tensor->file);
    load->set_format(weight.format());
    load->set_rows(weight.rows());
    load->set_cols(weight.cols());
    load->set_row_begin(rows.begin);
    load->set_row_end(rows.end);
    load->set_col_begin(slice.begin);
    load->set_col_end(slice.end);
    load->set_read_col_begin(slice.read_begin);
    load->set_read_col_end(slice.read_end);
    if (rows.empty() || cols.empty()) continue;
    *load->add_ranges() = RangeOf(*tensor, *format, rows, slice);
    read_bytes += load->ranges(0).length() * load->ranges(0).count();
  }
  plan.set_read_bytes(read_bytes);
  return plan;
}

}  // namespace bitshard
