// Whether a call that its caller has ended was ended by the caller's own deadline.
//
// gRPC sends a deadline as the time that is left, rounded up by up to 1 %, and it begins to run
// here when the call arrives. The caller's clock is therefore first: its cancel comes a little
// before the deadline that the service knows.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace bitshard {

// `begun`: when the call was here; `ended`: when its cancel came.
inline bool EndedByDeadline(absl::Time begun, absl::Time deadline, absl::Time ended) {
  if (deadline == absl::InfiniteFuture()) return false;
  return ended >= deadline - std::max((deadline - begun) / 100, absl::Milliseconds(5));
}

}  // namespace bitshard
