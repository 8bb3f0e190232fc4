// DeepSeek: calls between begin and end markers, each NAME<sep>ARGUMENTS (V3.1), or
// function<sep>NAME and the arguments in a ```json block (R1, V3).
#include "coordinator/text/call_reader.h"

namespace bitshard {
namespace {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kFence = "```json";
constexpr size_t kMaxName = 256;

class Reader final : public CallReader {
 public:
  State Push(char c, OutputPieces* out) override {
    unread_.push_back(c);
    switch (at_) {
      case At::kName:
        return PushName(c);
      case At::kFencedName:
        if (c == '\n') {
          at_ = At::kFence;
          return name_.empty() ? State::kBad : State::kMore;
        }
        name_.push_back(c);
        return name_.size() > kMaxName ? State::kBad : State::kMore;
      case At::kFence:
        if (matched_ == 0 && IsJsonSpace(c)) return State::kMore;
        if (c != kFence[matched_]) return State::kBad;
        if (++matched_ == kFence.size()) at_ = At::kBody;
        return State::kMore;
      case At::kBody:
        return PushBody(c, out);
      case At::kEnd:
        if (ending_.empty() && (IsJsonSpace(c) || c == '`')) return State::kMore;
        ending_.push_back(c);
        if (!kEnd.starts_with(ending_)) return State::kBad;
        return ending_.size() == kEnd.size() ? State::kDone : State::kMore;
    }
    return State::kBad;
  }

  State Finish(OutputPieces*) override { return at_ == At::kEnd ? State::kDone : State::kBad; }

  void Flush(OutputPieces* out) override {
    if (at_ != At::kBody || !begun_) return;
    out->Arguments(unread_, unread_);
    unread_.clear();
  }

 private:
  enum class At { kName, kFencedName, kFence, kBody, kEnd };

  State PushName(char c) {
    name_.push_back(c);
    if (name_.size() > kMaxName) return State::kBad;
    if (!name_.ends_with(kSeparator)) return State::kMore;
    name_.resize(name_.size() - kSeparator.size());
    at_ = At::kBody;
    if (name_ == "function") {  // the type; a function of this name would be read as one, too
      name_.clear();
      at_ = At::kFencedName;
      return State::kMore;
    }
    return name_.empty() ? State::kBad : State::kMore;
  }

  State PushBody(char c, OutputPieces* out) {
    if (!begun_) {
      if (IsJsonSpace(c)) return State::kMore;
      if (c != '{') return State::kBad;
      unread_.pop_back();
      out->BeginCall(name_, "", unread_);
      unread_.assign(1, c);
      begun_ = true;
    }
    const JsonScanner::State scan = scanner_.Push(c);
    if (scan == JsonScanner::State::kMore) return State::kMore;
    if (scan == JsonScanner::State::kDone) {
      Flush(out);
      out->EndCall("");
      at_ = At::kEnd;
      return State::kMore;
    }
    unread_.pop_back();
    Flush(out);
    unread_.assign(1, c);
    return State::kBad;
  }

  At at_ = At::kName;
  std::string name_;
  size_t matched_ = 0;
  bool begun_ = false;
  JsonScanner scanner_;
  std::string ending_;
};

class Parser final : public SectionParser {
 public:
  Parser()
      : SectionParser({{kCallsBegin, false}, {kCallsEnd, false}, {kBegin, true}},
                      /*json_at_start=*/false) {}

 private:
  std::unique_ptr<CallReader> Open(std::string_view) override { return std::make_unique<Reader>(); }
};

const RegisterOutputDialect kRegistered(
    {.name = "deepseek",
     .part = OutputDialect::Part::kToolCalls,
     .fit = [](std::string_view source) { return source.find(kBegin) != source.npos ? 20 : 0; },
     .markers = {kCallsBegin, kCallsEnd, kBegin, kSeparator, kEnd},
     .make = [](const OutputParserOptions&, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(); }});

}  // namespace
}  // namespace bitshard
