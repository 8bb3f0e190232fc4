// A LoadPlan that has been checked against its graph and its files, ready to be read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/formats/format.h"
#include "proto/graph.pb.h"
#include "worker/load/source_file.h"

namespace bitshard {

struct CheckedTensor {
  const internal::TensorLoad* load = nullptr;  // for messages: source_name
  uint32_t weight = 0;
  bool is_matrix = false;
  const WeightFormat* format = nullptr;
  uint64_t rows = 0;  // the rank's
  ColumnSlice columns;
  uint64_t row_bytes = 0;    // as read
  uint64_t arena_bytes = 0;  // in canonical form
  RangeReader reader;        // rows * row_bytes
};

struct CheckedLoadPlan {
  std::vector<SourceFile> files;
  std::vector<CheckedTensor>
      tensors;  // without those of which the rank owns nothing; in the order of the files
  uint64_t read_bytes = 0;
  uint64_t arena_bytes = 0;
};

// Opens the files. Errors as LoadWeights. The result keeps pointers into `plan`.
absl::StatusOr<std::unique_ptr<CheckedLoadPlan>> CheckLoadPlan(const internal::RankPlan& plan);

}  // namespace bitshard
