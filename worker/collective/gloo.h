// Ranks on several hosts: a TCP connection between every two of them, over Debian's libgloo.
//
// What travels is neither encrypted nor authenticated (SECURITY.md): the hosts' network must be
// private to the group.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "worker/collective/collective.h"
#include "worker/collective/tell_ranks.h"

namespace bitshard {

inline constexpr int kGlooMaxWorld = 64;

struct GlooGroup {
  std::string id;  // the same on all ranks, and new for every epoch
  int rank = 0, world = 1;
  std::string address;  // numeric, of this host; the other ranks reach it
  TellRanksFn tell;     // carries the addresses
};

// UNAVAILABLE when not all ranks came within `timeout`: the message names the missing ranks.
// CANCELLED soon after another thread has set `*stop`. FAILED_PRECONDITION when `address` is not of
// this host, or a rank of another communicator answered. Ignores SIGPIPE from then on, because Gloo
// writes to connections that may have ended.
absl::StatusOr<std::unique_ptr<Collective>> JoinGlooCollective(
    const GlooGroup& group, absl::Duration timeout, const std::atomic<bool>* stop = nullptr);

}  // namespace bitshard
