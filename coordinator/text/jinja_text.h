// A text that remembers which of its bytes the caller gave (message contents, tools, variables) and
// which the template wrote, so that control tokens are taken from the template's text alone.
//
// Operations that cut and join keep the marks byte for byte; those that rewrite a text as a whole
// (upper, format) mark all of it when any of it was the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/text/text_span.h"

namespace bitshard {

class JinjaText {
 public:
  JinjaText() = default;
  // The template's own, and the caller's.
  explicit JinjaText(std::string own) : bytes_(std::move(own)) {}
  static JinjaText Foreign(std::string bytes);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  // The caller's bytes: ascending, apart, not empty.
  const std::vector<TextSpan>& foreign() const { return foreign_; }
  // Memory that it takes, about.
  uint64_t cost() const { return bytes_.size() + foreign_.size() * sizeof(TextSpan); }

  // The same of a slice. REQUIRES: it is inside.
  uint64_t CostOf(size_t begin, size_t bytes) const;

  // Other bytes in the place of these: all the caller's if any was.
  JinjaText Rewritten(std::string bytes) const;
  bool IsForeign(size_t at) const;

 private:
  friend class JinjaWriter;  // has it paid for before

  void Append(std::string_view own) { bytes_ += own; }
  void Append(const JinjaText& text, size_t begin, size_t bytes);
  void AppendInPlaceOf(const JinjaText& from, size_t at, std::string_view replacement);
  void Mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<TextSpan> foreign_;
};

}  // namespace bitshard
