#include "coordinator/checkpoint/tensor_index.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {

uint64_t TensorInfo::bytes() const {
  uint64_t total = 0;  // parts lie inside of files, apart: no overflow
  for (const TensorPart& part : parts) total += part.bytes;
  return total;
}

uint32_t TensorIndex::AddFile(CheckpointFile file) {
  files_.push_back(std::move(file));
  return static_cast<uint32_t>(files_.size() - 1);
}

absl::Status TensorIndex::Add(TensorInfo tensor) {
  CHECK(!tensor.parts.empty());
  for (const TensorPart& part : tensor.parts) CHECK_LT(part.file, files_.size());
  const auto [entry, inserted] = by_name_.try_emplace(tensor.name, tensors_.size());
  if (!inserted) {
    const TensorInfo& first = tensors_[entry->second];
    return absl::DataLossError(absl::StrCat(PathOf(tensor), ": tensor '", tensor.source_name(),
                                            "' (", tensor.name, ") is already in ", PathOf(first),
                                            " as '", first.source_name(), "'; remove one of them"));
  }
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

const TensorInfo* TensorIndex::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace bitshard
