// Which address of this host the other ranks are told.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace bitshard {

struct GlooAddressChoice {
  std::string address;      // numeric, as the user gave it; "" = choose
  std::string interface;    // of the network, as the user gave it; "" = choose
  std::string coordinator;  // host:port: else the address that is used on the way there
  bool several_hosts = true;
};

// A numeric address. FAILED_PRECONDITION when there is none, or only one that no other host can
// reach; the message lists those of this host and says which flag to set.
absl::StatusOr<std::string> ChooseGlooAddress(const GlooAddressChoice& choice);

}  // namespace bitshard
