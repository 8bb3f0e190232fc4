#include "coordinator/text/jinja_text.h"

#include <algorithm>

namespace bitshard {
namespace {

// The first span that ends after `at`.
std::vector<TextSpan>::const_iterator FirstAfter(const std::vector<TextSpan>& spans, size_t at) {
  return std::upper_bound(spans.begin(), spans.end(), at,
                          [](size_t offset, const TextSpan& span) { return offset < span.end; });
}

}  // namespace

JinjaText JinjaText::Foreign(std::string bytes) {
  JinjaText text(std::move(bytes));
  text.Mark(0, text.size());
  return text;
}

void JinjaText::Mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!foreign_.empty() && foreign_.back().end == begin) {
    foreign_.back().end = end;
  } else {
    foreign_.push_back({begin, end});
  }
}

void JinjaText::Append(const JinjaText& text, size_t begin, size_t bytes) {
  const size_t base = bytes_.size();
  const size_t end = begin + bytes;
  for (auto it = FirstAfter(text.foreign_, begin); it != text.foreign_.end() && it->begin < end;
       ++it) {
    Mark(base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin);
  }
  bytes_.append(text.bytes_, begin, bytes);
}

uint64_t JinjaText::CostOf(size_t begin, size_t bytes) const {
  if (bytes == 0) return 0;
  const auto first = FirstAfter(foreign_, begin);
  const auto last =
      std::lower_bound(first, foreign_.end(), begin + bytes,
                       [](const TextSpan& span, size_t offset) { return span.begin < offset; });
  return bytes + static_cast<uint64_t>(last - first) * sizeof(TextSpan);
}

void JinjaText::AppendInPlaceOf(const JinjaText& from, size_t at, std::string_view replacement) {
  if (from.IsForeign(at)) Mark(size(), size() + replacement.size());
  bytes_ += replacement;
}

JinjaText JinjaText::Rewritten(std::string bytes) const {
  return foreign_.empty() ? JinjaText(std::move(bytes)) : Foreign(std::move(bytes));
}

bool JinjaText::IsForeign(size_t at) const {
  const auto it = FirstAfter(foreign_, at);
  return it != foreign_.end() && it->begin <= at;
}

}  // namespace bitshard
