#include "coordinator/text/added_tokens.h"

#include <algorithm>
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
    has_special_ |= tokens_[i].special;
  }
}

std::optional<AddedTokenSplitter::Match> AddedTokenSplitter::LongestAt(std::string_view text,
                                                                       size_t begin,
                                                                       size_t special_end) const {
  std::optional<Match> best;
  ByteTrie::NodeId node = ByteTrie::kRoot;
  for (size_t at = begin; at < text.size(); ++at) {
    const std::optional<ByteTrie::NodeId> next =
        trie_.Child(node, static_cast<unsigned char>(text[at]));
    if (!next.has_value()) break;
    node = *next;
    const int32_t token = token_at_[node];
    if (token < 0 || (tokens_[token].special && at + 1 > special_end)) continue;
    best = Match{token, at + 1};
  }
  return best;
}

void AddedTokenSplitter::Split(std::string_view text, bool parse_special,
                               absl::Span<const TextSpan> plain,
                               std::vector<TextSegment>* segments) const {
  size_t done = 0;  // everything before it is in `segments`
  size_t at = trie_.num_nodes() == 1 ? text.size() : 0;
  while (at < text.size()) {
    while (!plain.empty() && plain.front().end <= at) plain.remove_prefix(1);
    std::optional<Match> match = LongestAt(text, at, text.size());
    // As far as a special token that begins here may reach.
    size_t special_end = parse_special ? text.size() : 0;
    if (!plain.empty()) special_end = std::min(special_end, plain.front().begin);
    if (match.has_value() && tokens_[match->token].special && match->end > special_end) {
      const bool letters =
          !parse_special || (plain.front().begin <= at && match->end <= plain.front().end);
      if (letters) {  // they are not looked into for other tokens
        at = match->end;
        continue;
      }
      match = LongestAt(text, at, special_end);
    }
    if (!match.has_value()) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match->token];
    size_t begin = at;
    size_t end = match->end;
    at = end;
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
