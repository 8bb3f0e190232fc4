#include "worker/collective/operation.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

std::string Describe(const ToldOperation& told) {
  static constexpr const char* kNames[] = {"nothing", "all_reduce", "all_gather", "broadcast"};
  const uint64_t kind = told.packed >> 56;
  std::string text =
      absl::StrCat("operation ", told.sequence, ": ", kind < 4 ? kNames[kind] : "unknown", " of ",
                   told.packed & ((uint64_t{1} << 48) - 1), " bytes");
  if (kind == static_cast<uint64_t>(OperationKind::kBroadcast)) {
    absl::StrAppend(&text, " from rank ", (told.packed >> 48) & 0xff);
  }
  return text;
}

}  // namespace

uint64_t PackOperation(const Operation& operation) {
  CHECK_LT(operation.bytes, uint64_t{1} << 48);
  return static_cast<uint64_t>(operation.kind) << 56 | static_cast<uint64_t>(operation.root) << 48 |
         operation.bytes;
}

absl::Status RanksDisagree(const ToldOperation& of_rank_0, int rank, const ToldOperation& of_rank) {
  return absl::InternalError(absl::StrCat("collective: ranks disagree: rank 0 is in ",
                                          Describe(of_rank_0), ", rank ", rank, " is in ",
                                          Describe(of_rank)));
}

}  // namespace bitshard
