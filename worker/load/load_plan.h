// A LoadPlan that has been checked against its graph and its files, ready to be read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/formats/format.h"
#include "kernels/tensor/synthetic.h"
#include "proto/graph.pb.h"
#include "worker/load/source_file.h"

namespace bitshard {

struct CheckedPart {
  PartSlice slice;     // of the whole rank
  RangeReader reader;  // slice.bytes()
};

struct CheckedTensor {
  const internal::TensorLoad* load = nullptr;
  uint32_t weight = 0;
  bool is_matrix = false;
  const WeightFormat* format = nullptr;
  uint64_t source_cols = 0;        // of the whole stored weight
  MatrixSlice slice;               // the rank's
  std::vector<CheckedPart> parts;  // none of a synthetic weight
  uint64_t read_bytes = 0;         // of all parts
  uint64_t arena_bytes = 0;        // in canonical form
};

struct CheckedLoadPlan {
  std::vector<SourceFile> files;
  std::vector<CheckedTensor>
      tensors;  // without those of which the rank owns nothing; in the order of the files
  uint64_t read_bytes = 0;
  uint64_t arena_bytes = 0;
  std::optional<uint64_t> synthetic_seed;
};

// Opens the files. Errors as LoadWeights. The result keeps pointers into `plan`.
absl::StatusOr<std::unique_ptr<CheckedLoadPlan>> CheckLoadPlan(const internal::RankPlan& plan);

}  // namespace bitshard
