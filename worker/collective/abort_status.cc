// How an operation of a collective tells that the group was aborted: a status that carries a mark.
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "worker/collective/collective.h"

namespace bitshard {
namespace {

constexpr absl::string_view kPayload = "bitshard/collective-abort";

}  // namespace

absl::Status CollectiveAbort(int rank) {
  absl::Status status = absl::UnavailableError(absl::StrCat("collective aborted by rank ", rank));
  status.SetPayload(kPayload, absl::Cord());
  return status;
}

bool IsCollectiveAbort(const absl::Status& status) {
  return status.GetPayload(kPayload).has_value();
}

}  // namespace bitshard
