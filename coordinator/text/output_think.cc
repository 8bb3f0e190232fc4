// <think>reasoning</think>answer: Qwen3, DeepSeek-R1, SmolLM3 and others. Granite also puts the
// answer between <response> and </response>. The prompt may have opened the reasoning already.
#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/text/json_scanner.h"
#include "coordinator/text/output_parser.h"

namespace bitshard {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kAnswer = "<response>";
constexpr std::string_view kAnswerEnd = "</response>";

class Parser final : public OutputParser {
 public:
  Parser(std::string_view prompt, bool answer_tags, std::unique_ptr<OutputParser> next)
      : next_(std::move(next)), answer_tags_(answer_tags) {
    const size_t open = prompt.rfind(kOpen);
    const bool opened =
        open != prompt.npos &&
        prompt.substr(open + kOpen.size()).find_first_not_of(" \t\r\n") == prompt.npos;
    if (opened) at_ = At::kReasoningBegins;
  }

  void Push(std::string_view text, OutputPieces* out) override {
    for (const char c : text) PushByte(c, out);
    FlushAnswer(out);
  }

  void Finish(OutputPieces* out) override {
    // What was held back could have become a tag and has not.
    if (at_ == At::kReasoning) {
      out->Reasoning(std::exchange(held_, ""));
    } else if (at_ == At::kReasoningBegins || at_ == At::kAnswerBegins) {
      const size_t blank = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
      out->Markup(std::string_view(held_).substr(0, blank));
      if (at_ == At::kReasoningBegins) {
        out->Reasoning(std::string_view(held_).substr(blank));
      } else {
        answer_ += held_.substr(blank);
      }
      held_.clear();
    } else {
      answer_ += std::exchange(held_, "");
    }
    FlushAnswer(out);
    if (next_ != nullptr) next_->Finish(out);
  }

 private:
  enum class At { kStart, kReasoningBegins, kReasoning, kAnswerBegins, kAnswer, kTaggedAnswer };

  void PushByte(char c, OutputPieces* out) {
    switch (at_) {
      case At::kAnswer:
        answer_.push_back(c);
        return;
      case At::kStart: {
        if (HoldBlank(c)) return;
        const std::string_view word = std::string_view(held_).substr(blanks_);
        if (word == kOpen) {
          blanks_ = 0;
          out->Markup(std::exchange(held_, ""));
          at_ = At::kReasoningBegins;
        } else if (!kOpen.starts_with(word)) {  // an answer without reasoning
          answer_ += std::exchange(held_, "");
          blanks_ = 0;
          at_ = At::kAnswer;
        }
        return;
      }
      case At::kReasoningBegins:
        held_.push_back(c);
        if (IsJsonSpace(c)) return;
        held_.pop_back();
        out->Markup(std::exchange(held_, ""));
        at_ = At::kReasoning;
        [[fallthrough]];
      case At::kReasoning:
        if (Until(kClose, c, [&](std::string_view part) { out->Reasoning(part); })) {
          out->Markup(std::exchange(held_, ""));
          at_ = At::kAnswerBegins;
        }
        return;
      case At::kAnswerBegins: {
        if (HoldBlank(c)) return;
        const std::string_view word = std::string_view(held_).substr(blanks_);
        if (answer_tags_ && word == kAnswer) {
          out->Markup(std::exchange(held_, ""));
          blanks_ = 0;
          answer_tags_ = false;
          tagged_ = true;
          return;
        }
        if (answer_tags_ && kAnswer.starts_with(word)) return;
        out->Markup(std::string_view(held_).substr(0, blanks_));
        const std::string rest = std::exchange(held_, "").substr(blanks_);
        blanks_ = 0;
        at_ = tagged_ ? At::kTaggedAnswer : At::kAnswer;
        for (const char again : rest) PushByte(again, out);
        return;
      }
      case At::kTaggedAnswer:
        if (Until(kAnswerEnd, c, [&](std::string_view part) { answer_ += part; })) {
          FlushAnswer(out);
          if (next_ != nullptr) next_->Finish(out);  // what it holds back comes before the tag
          out->Markup(std::exchange(held_, ""));
          at_ = At::kAnswer;
        }
        return;
    }
  }

  // Holds c back. True when it is white space and so is all before it, of which there may be much.
  bool HoldBlank(char c) {
    held_.push_back(c);
    if (blanks_ + 1 != held_.size() || !IsJsonSpace(c)) return false;
    ++blanks_;
    return true;
  }

  // What is held back, less the white space before it.
  std::string_view Word() const {
    const size_t begin = held_.find_first_not_of(" \t\r\n");
    return begin == held_.npos ? std::string_view() : std::string_view(held_).substr(begin);
  }

  // Gives text up to `tag` and the white space before it, which are held back; true when the tag is
  // complete.
  template <typename Give>
  bool Until(std::string_view tag, char c, Give give) {
    held_.push_back(c);
    while (true) {
      const std::string_view word = Word();
      if (word == tag) return true;
      if (tag.starts_with(word)) {  // white space alone, too
        if (!word.empty() || held_.size() <= kMaxHeldSpace) return false;
        give(std::string_view(held_).substr(0, 1));
        held_.erase(0, 1);
        continue;
      }
      // A tag may still begin behind the word's first byte.
      const size_t bytes = held_.size() - word.size() + 1;
      give(std::string_view(held_).substr(0, bytes));
      held_.erase(0, bytes);
      if (held_.empty()) return false;
    }
  }

  // On in one piece: `next_` must not see parts of characters.
  void FlushAnswer(OutputPieces* out) {
    if (answer_.empty()) return;
    if (next_ == nullptr) {
      out->Text(answer_);
    } else {
      next_->Push(answer_, out);
    }
    answer_.clear();
  }

  static constexpr size_t kMaxHeldSpace = 64;

  const std::unique_ptr<OutputParser> next_;
  bool answer_tags_;  // are looked for
  bool tagged_ = false;
  At at_ = At::kStart;
  std::string held_;
  size_t blanks_ = 0;  // at the begin of held_, while the begin of something is looked for
  std::string answer_;
};

template <bool kAnswerTags>
std::unique_ptr<OutputParser> Make(const OutputParserOptions& options,
                                   std::unique_ptr<OutputParser> next) {
  return std::make_unique<Parser>(options.prompt, kAnswerTags, std::move(next));
}

const RegisterOutputDialect kRegistered(
    {.name = "think",
     .part = OutputDialect::Part::kReasoning,
     .fit = [](std::string_view source) { return source.find(kClose) != source.npos ? 10 : 0; },
     .markers = {kOpen, kClose},
     .make = &Make<false>});

const RegisterOutputDialect kRegisteredTagged({.name = "think_response",
                                               .part = OutputDialect::Part::kReasoning,
                                               .fit =
                                                   [](std::string_view source) {
                                                     return source.find(kClose) != source.npos &&
                                                                    source.find(kAnswerEnd) !=
                                                                        source.npos
                                                                ? 20
                                                                : 0;
                                                   },
                                               .markers = {kOpen, kClose, kAnswer, kAnswerEnd},
                                               .make = &Make<true>});

}  // namespace
}  // namespace bitshard
