#include "coordinator/text/added_tokens.h"

#include <utility>

#include "coordinator/text/utf8.h"

namespace bitshard {
namespace {

// The start of the last character before `offset`. REQUIRES: offset > 0, valid UTF-8.
size_t PreviousChar(std::string_view text, size_t offset) {
  do {
    --offset;
  } while ((static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80);
  return offset;
}

bool SpaceAt(std::string_view text, size_t offset) {
  return ClassOf(CodePointAt(text, offset).value) == CharClass::kSpace;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(CodePointAt(text, PreviousChar(text, begin)).value)) return false;
  return end == text.size() || !IsWordChar(CodePointAt(text, end).value);
}

}  // namespace

AddedTokenSplitter::AddedTokenSplitter(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_at_(1, -1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) continue;
    const ByteTrie::NodeId node = trie_.Insert(tokens_[i].content);
    token_at_.resize(trie_.num_nodes(), -1);
    token_at_[node] = static_cast<int32_t>(i);
  }
}

std::optional<AddedTokenSplitter::Match> AddedTokenSplitter::LongestAt(std::string_view text,
                                                                       size_t begin) const {
  std::optional<Match> best;
  ByteTrie::NodeId node = ByteTrie::kRoot;
  for (size_t at = begin; at < text.size(); ++at) {
    const std::optional<ByteTrie::NodeId> next =
        trie_.Child(node, static_cast<unsigned char>(text[at]));
    if (!next.has_value()) break;
    node = *next;
    if (token_at_[node] >= 0) best = Match{token_at_[node], at + 1};
  }
  return best;
}

void AddedTokenSplitter::Split(std::string_view text, bool parse_special,
                               std::vector<TextSegment>* segments) const {
  size_t done = 0;  // everything before it is in `segments`
  size_t at = trie_.num_nodes() == 1 ? text.size() : 0;
  while (at < text.size()) {
    const std::optional<Match> match = LongestAt(text, at);
    if (!match.has_value()) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match->token];
    size_t begin = at;
    size_t end = match->end;
    at = end;
    if (token.special && !parse_special) continue;
    if (token.single_word && !StandsAlone(text, begin, end)) continue;
    if (token.lstrip) {
      while (begin > done) {
        const size_t before = PreviousChar(text, begin);
        if (!SpaceAt(text, before)) break;
        begin = before;
      }
    }
    if (token.rstrip) {
      while (end < text.size() && SpaceAt(text, end)) end += CodePointAt(text, end).bytes;
    }
    if (begin > done) segments->push_back({text.substr(done, begin - done), std::nullopt});
    segments->push_back({text.substr(begin, end - begin), token.id});
    done = at = end;
  }
  if (done < text.size()) segments->push_back({text.substr(done), std::nullopt});
}

}  // namespace bitshard
