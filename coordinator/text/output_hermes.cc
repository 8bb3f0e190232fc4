// Hermes, Qwen2.5, Qwen3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
#include "coordinator/text/call_reader.h"

namespace bitshard {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";

class Reader final : public CallReader {
 public:
  Reader() : call_(/*tools=*/nullptr, &unread_) {}

  State Push(char c, OutputPieces* out) override {
    if (!read_) {
      const State state = call_.Push(c, out);
      read_ = state == State::kDone;
      return state == State::kBad ? State::kBad : State::kMore;
    }
    unread_.push_back(c);
    if (closed_ == 0 && IsJsonSpace(c)) return State::kMore;
    if (c != kClose[closed_]) return State::kBad;
    return ++closed_ == kClose.size() ? State::kDone : State::kMore;
  }
  State Finish(OutputPieces*) override { return read_ ? State::kDone : State::kBad; }
  void Flush(OutputPieces* out) override { call_.Flush(out); }

 private:
  JsonCall call_;
  bool read_ = false;
  size_t closed_ = 0;  // bytes of kClose
};

class Parser final : public SectionParser {
 public:
  Parser() : SectionParser({{kOpen}}, /*json_at_start=*/false) {}

 private:
  std::unique_ptr<CallReader> Open(std::string_view) override { return std::make_unique<Reader>(); }
};

const RegisterOutputDialect kRegistered(
    {.name = "hermes",
     .part = OutputDialect::Part::kToolCalls,
     .fit = [](std::string_view source) { return source.find(kOpen) != source.npos ? 10 : 0; },
     .markers = {kOpen, kClose},
     .make = [](const OutputParserOptions&, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(); }});

}  // namespace
}  // namespace bitshard
