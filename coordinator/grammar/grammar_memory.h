// How large grammars become while sequences follow them: their masks are made when they are first
// needed, and kept.
//
// A grammar is measured now and then, for that takes a look at all of its masks. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace bitshard {

// All grammars that are followed at the moment.
class GrammarMemory {
 public:
  struct Limits {
    uint64_t one = uint64_t{256} << 20;  // bytes of a grammar
    uint64_t all = uint64_t{1} << 30;    // of all that are followed
  };

  explicit GrammarMemory(const Limits& limits) : limits_(limits) {}

  // There are so many more of them, or fewer, and they take so much more, or less.
  void Change(int64_t grammars, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // A grammar of that size must not grow on: it is beyond its bound; or all together are beyond
  // theirs, and it is not smaller than the others are on average.
  bool TooLarge(uint64_t bytes) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const Limits limits_;
  mutable absl::Mutex mu_;
  int64_t grammars_ ABSL_GUARDED_BY(mu_) = 0, bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// One grammar.
class GrammarSize {
 public:
  // `all` is shared with the other grammars, which may end later. `measure`: its bytes, now.
  GrammarSize(std::shared_ptr<GrammarMemory> all, std::function<uint64_t()> measure);

  // Somebody follows it; and no more.
  void Join() ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // Somebody has filled a mask.
  void Filled() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);  // as last measured
  bool TooLarge() const { return all_->TooLarge(bytes()); }

 private:
  const std::shared_ptr<GrammarMemory> all_;
  const std::function<uint64_t()> measure_;
  mutable absl::Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_);
  uint64_t followers_ ABSL_GUARDED_BY(mu_) = 0, filled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bitshard
