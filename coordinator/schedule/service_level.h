// What a request's time is worth beside others: interactive before batch, then the lower priority
// number. The order of the levels is the order of service; nothing of a later level is served
// while an earlier one could use it.
#pragma once

#include <compare>
#include <cstdint>

namespace bitshard {

struct ServiceLevel {
  bool batch = false;  // nobody waits for it
  int32_t priority = 0;
  friend auto operator<=>(const ServiceLevel&, const ServiceLevel&) = default;
};

}  // namespace bitshard
