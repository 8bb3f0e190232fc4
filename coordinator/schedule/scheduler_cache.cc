// The scheduler's dealings with the prefix cache: what enters it, what is found in it, and what is
// taken out after a fault.
#include <algorithm>
#include <vector>

#include "coordinator/schedule/scheduler.h"
#include "kernels/base/check.h"

namespace bitshard {

void Scheduler::IndexRunning() {
  const bool torn = cache_->drops() != drops_at_indexing_;
  for (Sequence* sequence : running_) Index(sequence, torn);
  drops_at_indexing_ = cache_->drops();
}

void Scheduler::Index(Sequence* sequence, bool torn) {
  if (!limits_.prefix_cache || !sequence->slot.has_value()) return;
  // Its chain may hang on another's blocks with the same tokens, and those may have been evicted:
  // its own take their place.
  if (torn && sequence->cache_place.has_value() && !cache_->Has(*sequence->cache_place)) {
    sequence->cache_place.reset();
    sequence->indexed_blocks = 0;
  }
  const absl::Span<const uint32_t> tokens(sequence->tokens);
  const uint32_t committed =
      std::min(sequence->computed, static_cast<uint32_t>(sequence->tokens.size()));
  for (uint32_t i = sequence->indexed_blocks; i < committed / limits_.block_tokens; ++i) {
    const BlockId block = sequence->blocks[i];
    if (pool_.is_condemned(block)) return;
    sequence->cache_place = cache_->Insert(
        sequence->cache_seed, sequence->cache_place,
        tokens.subspan(size_t{i} * limits_.block_tokens, limits_.block_tokens), block);
    CHECK(sequence->cache_place.has_value()) << "the chain of sequence " << sequence->id << " tore";
    sequence->indexed_blocks = i + 1;
  }
}

PrefixCache::Hit Scheduler::FindCached(const Sequence& sequence) const {
  if (!limits_.prefix_cache) return {};
  return cache_->Find(sequence.cache_seed, sequence.tokens,
                      sequence.cacheable() / limits_.block_tokens);
}

void Scheduler::PreemptCondemned() {
  if (pool_.condemned() == 0) return;
  std::vector<Sequence*> sharers;
  for (Sequence* sequence : running_) {
    if (std::any_of(sequence->blocks.begin(), sequence->blocks.end(),
                    [this](BlockId id) { return pool_.is_condemned(id); }))
      sharers.push_back(sequence);
  }
  for (Sequence* sequence : sharers) BackToWaiting(sequence);
}

void Scheduler::SetAside(absl::Span<const BlockId> written) {
  // The last one first: with a block go those below it.
  for (auto id = written.rbegin(); id != written.rend(); ++id) {
    if (!cache_->HasBlock(*id)) continue;  // nobody can find it any more
    pool_.AddReference(*id);
    cache_->Drop(*id);
    pool_.ReleaseToQuarantine(*id);
  }
}

}  // namespace bitshard
