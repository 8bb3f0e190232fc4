#include "coordinator/shard/load_plan.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

// A sub-rectangle of a stored part as one range: a run of pieces, one a row, or one piece where
// rows touch.
internal::ByteRange RangeOf(const TensorPart& part, const PartShape& shape,
                            const PartSlice& slice) {
  internal::ByteRange range;
  range.set_offset(part.offset + slice.row_begin * shape.row_bytes + slice.byte_begin);
  if (slice.row_bytes() == shape.row_bytes || slice.rows() == 1) {
    range.set_length(slice.bytes());
    range.set_stride(slice.bytes());
    range.set_count(1);
  } else {
    range.set_length(slice.row_bytes());
    range.set_stride(shape.row_bytes);
    range.set_count(slice.rows());
  }
  return range;
}

}  // namespace

absl::StatusOr<internal::LoadPlan> MakeLoadPlan(const internal::ModelGraph& graph,
                                                const TensorIndex& index, const RankCut& cut) {
  internal::LoadPlan plan;
  const bool synthetic = index.synthetic_seed().has_value();
  if (synthetic) plan.set_synthetic_seed(*index.synthetic_seed());
  for (const CheckpointFile& file : index.files()) {
    if (synthetic) break;
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
    const MatrixSlice slice{rows.begin, rows.end, cols.begin, cols.end};

    internal::TensorLoad* const load = plan.add_tensors();
    load->set_weight(static_cast<uint32_t>(w));
    load->set_format(weight.format());
    load->set_rows(weight.rows());
    load->set_cols(weight.cols());
    load->set_row_begin(rows.begin);
    load->set_row_end(rows.end);
    load->set_col_begin(cols.begin);
    load->set_col_end(cols.end);
    if (synthetic) continue;
    for (size_t i = 0; i < format->part_count(); ++i) {
      ASSIGN_OR_RETURN(const PartShape shape, format->ShapeOfPart(i, weight.rows(), weight.cols()));
      const PartSlice part_slice = format->SliceOfPart(i, weight.cols(), slice);
      internal::PartLoad* const part = load->add_parts();
      part->set_source_name(tensor->parts[i].source_name);
      part->set_file(tensor->parts[i].file);
      part->set_row_begin(part_slice.row_begin);
      part->set_row_end(part_slice.row_end);
      part->set_byte_begin(part_slice.byte_begin);
      part->set_byte_end(part_slice.byte_end);
      if (part_slice.bytes() == 0) continue;
      *part->add_ranges() = RangeOf(tensor->parts[i], shape, part_slice);
      read_bytes += part_slice.bytes();
    }
  }
  plan.set_read_bytes(read_bytes);
  return plan;
}

}  // namespace bitshard
