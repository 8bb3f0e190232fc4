// Llama 3: the whole answer is {"name": ..., "parameters": {...}}, or several with ';' between
// them; <|python_tag|> may come first. Only names of the request's tools make an object a call.
#include <vector>

#include "coordinator/text/call_reader.h"

namespace bitshard {
namespace {

constexpr std::string_view kOpen = "<|python_tag|>";

class Reader final : public CallReader {
 public:
  explicit Reader(std::shared_ptr<const std::vector<ChatTool>> tools)
      : tools_(std::move(tools)), call_(tools_.get(), &unread_) {}

  State Push(char c, OutputPieces* out) override {
    if (read_) {
      unread_.push_back(c);
      if (IsJsonSpace(c)) return State::kMore;
      if (c != ';' || separated_) {
        if (c != '{' || !separated_) return State::kBad;
        unread_.pop_back();
        call_ = JsonCall(tools_.get(), &unread_);
        read_ = false;
      } else {
        separated_ = true;
        return State::kMore;
      }
    }
    const State state = call_.Push(c, out);
    read_ = state == State::kDone;
    separated_ = false;
    return state == State::kBad ? State::kBad : State::kMore;
  }
  State Finish(OutputPieces*) override { return read_ ? State::kDone : State::kBad; }
  void Flush(OutputPieces* out) override { call_.Flush(out); }

 private:
  const std::shared_ptr<const std::vector<ChatTool>> tools_;  // as long as the answer
  JsonCall call_;
  bool read_ = false;
  bool separated_ = false;
};

class Parser final : public SectionParser {
 public:
  explicit Parser(std::shared_ptr<const std::vector<ChatTool>> tools)
      : SectionParser({{kOpen}}, /*json_at_start=*/true), tools_(std::move(tools)) {}

 private:
  std::unique_ptr<CallReader> Open(std::string_view) override {
    return std::make_unique<Reader>(tools_);
  }
  const std::shared_ptr<const std::vector<ChatTool>> tools_;  // of the request
};

int Fit(std::string_view source) {
  const bool llama = source.find("<|start_header_id|>") != source.npos;
  const bool calls = source.find("\"parameters\": ") != source.npos ||
                     source.find(kOpen) != source.npos || source.find("tool_calls") != source.npos;
  return llama && calls ? 5 : 0;
}

const RegisterOutputDialect kRegistered(
    {.name = "llama3_json",
     .part = OutputDialect::Part::kToolCalls,
     .fit = &Fit,
     .markers = {kOpen},
     .make = [](const OutputParserOptions& options, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(options.tools); }});

}  // namespace
}  // namespace bitshard
