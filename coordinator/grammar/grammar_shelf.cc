#include "coordinator/grammar/grammar_shelf.h"

#include <utility>

namespace bitshard {
namespace {

constexpr int kLooks = 8;  // a call

}  // namespace

GrammarShelf::Grammar GrammarShelf::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  // It never shrinks: who follows it is to end, and so would be who comes now.
  if (found->second->grammar->TooLarge()) {
    Erase(found->second);
    return nullptr;
  }
  Look(*found->second);
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->grammar;
}

bool GrammarShelf::Put(const std::string& key, Grammar grammar) {
  if (const auto old = by_key_.find(key); old != by_key_.end()) Erase(old->second);
  entries_.push_front({key, std::move(grammar), /*bytes=*/0});
  by_key_[key] = entries_.begin();
  Look(entries_.front());
  if (Trim() <= limits_.bytes) return true;
  if (const auto it = by_key_.find(key); it != by_key_.end()) Erase(it->second);
  return false;
}

void GrammarShelf::Look(Entry& entry) {
  const uint64_t before = std::exchange(entry.bytes, entry.grammar->MemoryBytes());
  bytes_ += entry.bytes - before;  // may wrap on the way
}

void GrammarShelf::LookAtSome() {
  for (int i = 0; i < kLooks && !entries_.empty(); ++i) {
    if (next_look_ == entries_.end()) next_look_ = entries_.begin();
    Look(*next_look_++);
  }
}

GrammarShelf::Entries::iterator GrammarShelf::Erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  if (next_look_ == entry) ++next_look_;
  by_key_.erase(entry->key);
  return entries_.erase(entry);
}

uint64_t GrammarShelf::Trim() {
  LookAtSome();
  for (auto it = entries_.end(); it != entries_.begin();) {
    if (bytes_ <= limits_.kept_bytes && entries_.size() <= limits_.kept_grammars) break;
    --it;
    // Nobody can come to it meanwhile but through us.
    if (it->grammar.use_count() == 1) it = Erase(it);
  }
  return bytes_;
}

absl::Status RefusalBook::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return absl::OkStatus();
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->refusal;
}

void RefusalBook::Add(const std::string& key, absl::Status refusal) {
  if (most_ == 0 || by_key_.contains(key)) return;
  entries_.push_front({key, std::move(refusal)});
  by_key_[key] = entries_.begin();
  if (entries_.size() <= most_) return;
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
}

}  // namespace bitshard
