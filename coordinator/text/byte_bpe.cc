#include "coordinator/text/byte_bpe.h"

#include <queue>
#include <tuple>

#include "absl/status/status.h"

#include "coordinator/text/byte_level.h"
#include "coordinator/text/concat.h"

namespace bitshard {
namespace {

// Up to this many bytes scanning all pairs for the best one beats the heap; almost every word is
// shorter.
constexpr size_t kShortBytes = 24;

}  // namespace

absl::StatusOr<ByteBpe> ByteBpe::Create(
    const Vocabulary* vocabulary,
    const std::vector<std::pair<std::string_view, std::string_view>>& merges, bool whole_pieces) {
  ByteBpe bpe;
  bpe.vocabulary_ = vocabulary;
  bpe.whole_pieces_ = whole_pieces;
  for (int b = 0; b < 256; ++b) {
    bpe.byte_ids_[b] = vocabulary->Find(ByteLevelChar(static_cast<unsigned char>(b)));
  }
  bpe.merges_.reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined.assign(left).append(right);
    const std::optional<int32_t> left_id = vocabulary->Find(left);
    const std::optional<int32_t> right_id = vocabulary->Find(right);
    const std::optional<int32_t> id = vocabulary->Find(joined);
    if (!left_id.has_value() || !right_id.has_value() || !id.has_value()) {
      return absl::DataLossError(Concat(
          "tokenizer: merge ", rank, " ('", left, "' + '", right, "'): ",
          !left_id.has_value() ? left : (!right_id.has_value() ? right : std::string_view(joined)),
          " is not in the vocabulary"));
    }
    // A repeated merge keeps its last rank, as in the libraries that these files are made with.
    bpe.merges_[Key(*left_id, *right_id)] = Merge{static_cast<int32_t>(rank), *id};
  }
  return bpe;
}

void ByteBpe::Encode(std::string_view piece, std::vector<int32_t>* ids) const {
  if (whole_pieces_) {
    const std::optional<int32_t> id = vocabulary_->FindBytes(piece);
    // A control token is never made of plain text; where it is wanted it was cut out before.
    if (id.has_value() && !vocabulary_->Get(*id)->special) {
      ids->push_back(*id);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  for (char c : piece) {
    if (const auto& id = byte_ids_[static_cast<unsigned char>(c)]) symbols.push_back(*id);
  }
  if (symbols.size() <= kShortBytes) {
    EncodeShort(&symbols);
  } else {
    EncodeLong(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void ByteBpe::EncodeShort(std::vector<int32_t>* symbols) const {
  std::vector<int32_t>& s = *symbols;
  std::array<const Merge*, kShortBytes> pairs;  // pairs[i]: the merge of s[i] and s[i + 1], if any
  for (size_t i = 0; i + 1 < s.size(); ++i) pairs[i] = Find(s[i], s[i + 1]);
  while (s.size() > 1) {
    size_t best = s.size();
    for (size_t i = 0; i + 1 < s.size(); ++i) {
      if (pairs[i] == nullptr) continue;
      if (best == s.size() || pairs[i]->rank < pairs[best]->rank) best = i;
    }
    if (best == s.size()) return;
    s[best] = pairs[best]->id;
    s.erase(s.begin() + best + 1);
    for (size_t i = best + 1; i + 1 < s.size(); ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = Find(s[best - 1], s[best]);
    if (best + 1 < s.size()) pairs[best] = Find(s[best], s[best + 1]);
  }
}

// The same by a heap of candidate pairs over a linked list. A candidate whose symbols have changed
// since is stale and skipped: its right neighbour or its ids no longer fit.
void ByteBpe::EncodeLong(std::vector<int32_t>* symbols) const {
  constexpr int32_t kNone = -1;
  struct Link {
    int32_t prev, next;
    bool alive;
  };
  struct Candidate {
    int32_t rank, left, left_id, right_id, merged_id;
    bool operator>(const Candidate& o) const {
      return std::tie(rank, left) > std::tie(o.rank, o.left);
    }
  };
  std::vector<int32_t>& s = *symbols;
  const int32_t n = static_cast<int32_t>(s.size());
  std::vector<Link> links(n);
  for (int32_t i = 0; i < n; ++i) links[i] = {i - 1, i + 1 < n ? i + 1 : kNone, true};

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> heap;
  const auto offer = [&](int32_t left) {
    if (left == kNone || links[left].next == kNone) return;
    const int32_t right = links[left].next;
    if (const Merge* m = Find(s[left], s[right])) {
      heap.push({m->rank, left, s[left], s[right], m->id});
    }
  };
  for (int32_t i = 0; i < n; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    if (!links[c.left].alive || s[c.left] != c.left_id) continue;
    const int32_t right = links[c.left].next;
    if (right == kNone || s[right] != c.right_id) continue;
    s[c.left] = c.merged_id;
    links[right].alive = false;
    links[c.left].next = links[right].next;
    if (links[right].next != kNone) links[links[right].next].prev = c.left;
    offer(links[c.left].prev);
    offer(c.left);
  }
  size_t kept = 0;
  for (int32_t i = 0; i != kNone && n > 0; i = links[i].next) s[kept++] = s[i];
  s.resize(kept);
}

}  // namespace bitshard
