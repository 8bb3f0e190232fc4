#include "coordinator/grammar/grammar_shelf.h"

#include <algorithm>
#include <utility>

namespace bitshard {

GrammarShelf::Grammar GrammarShelf::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->grammar;
}

bool GrammarShelf::Put(const std::string& key, Grammar grammar) {
  if (const auto old = by_key_.find(key); old != by_key_.end()) {
    entries_.erase(old->second);
    by_key_.erase(old);
  }
  entries_.push_front({key, std::move(grammar)});
  by_key_[key] = entries_.begin();
  if (Trim() <= limits_.bytes) return true;
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return false;
  entries_.erase(it->second);
  by_key_.erase(it);
  return false;
}

uint64_t GrammarShelf::Trim() {
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.grammar->MemoryBytes();
  for (auto it = entries_.end(); it != entries_.begin();) {
    if (bytes <= limits_.kept_bytes && entries_.size() <= limits_.kept_grammars) break;
    --it;
    // Nobody can come to it meanwhile but through us.
    if (it->grammar.use_count() > 1) continue;
    bytes -= std::min(bytes, it->grammar->MemoryBytes());
    by_key_.erase(it->key);
    it = entries_.erase(it);
  }
  return bytes;
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
