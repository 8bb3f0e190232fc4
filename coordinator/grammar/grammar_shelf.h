// What was compiled lately and what requests use at the moment, within bounds; and what was refused
// lately.
//
// A grammar that nobody uses goes when there is too much of all, the one that was asked for longest
// ago first. One that is used stays, so that who asks for the same shares it. Keys are
// Constraint::Key's digests. Neither is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "coordinator/grammar/token_matcher.h"

namespace bitshard {

class GrammarShelf {
 public:
  struct Limits {
    uint64_t kept_bytes = uint64_t{256} << 20;  // beyond them what nobody uses goes
    size_t kept_grammars = 256;
    uint64_t bytes = uint64_t{1} << 30;  // beyond them there are no new ones
  };
  using Grammar = std::shared_ptr<const CompiledGrammar>;

  explicit GrammarShelf(const Limits& limits) : limits_(limits) {}

  // Null when there is none, or one that has grown too large, which is forgotten: it is compiled
  // afresh.
  Grammar Find(const std::string& key);
  // False when there is no room for it beside those in use: it is not kept.
  bool Put(const std::string& key, Grammar grammar);
  // Those in use leave no room for another.
  bool Full() { return Trim() >= limits_.bytes; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    Grammar grammar;
    uint64_t bytes;  // when it was last looked at
  };
  using Entries = std::list<Entry>;

  // Grammars grow while they are used: each call looks at a few, in turns.
  void LookAtSome();
  void Look(Entry& entry);
  Entries::iterator Erase(Entries::iterator entry);
  // Lets go of what is too much; the bytes of the rest.
  uint64_t Trim();

  const Limits limits_;
  Entries entries_;     // asked for last comes first
  uint64_t bytes_ = 0;  // of all entries
  Entries::iterator next_look_ = entries_.end();
  absl::flat_hash_map<std::string, Entries::iterator> by_key_;
};

class RefusalBook {
 public:
  explicit RefusalBook(size_t most) : most_(most) {}

  // OK when nothing is known against it.
  absl::Status Find(const std::string& key);
  // The one that was asked for longest ago is forgotten when there are too many.
  void Add(const std::string& key, absl::Status refusal);

 private:
  struct Entry {
    std::string key;
    absl::Status refusal;
  };
  using Entries = std::list<Entry>;

  const size_t most_;
  Entries entries_;  // asked for last comes first
  absl::flat_hash_map<std::string, Entries::iterator> by_key_;
};

}  // namespace bitshard
