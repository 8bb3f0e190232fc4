// What the unquantized formats share: a value is a block of its own and is kept as stored.
#pragma once

#include "kernels/base/check.h"
#include "kernels/formats/format.h"

namespace bitshard {

class DenseFormat : public BlockFormat {
 public:
  DenseFormat(std::string_view name, PackedSpec::Type type, uint64_t value_bytes)
      : BlockFormat(name, 1, value_bytes), type_(type) {}

  PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const override {
    return {.rows = rows, .cols = slice.cols(), .type = type_};
  }

  absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin, uint64_t row_count,
                           const ColumnSlice& slice, PackedMatrixBuilder& builder) const override {
    const uint64_t row_bytes = slice.read_cols() * block_bytes();
    CHECK_EQ(bytes.size(), row_count * row_bytes);
    const uint8_t* first = bytes.data() + (slice.begin - slice.read_begin) * block_bytes();
    for (uint64_t i = 0; i < row_count; ++i)
      builder.SetDenseRow(row_begin + i, first + i * row_bytes);
    return absl::OkStatus();
  }

 private:
  const PackedSpec::Type type_;
};

}  // namespace bitshard
