// A marker, then a list of calls: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] of Mistral,
// <|tool_call|>[...] of Granite. Newer Mistral models write [TOOL_CALLS]name[ARGS]{...}.
#include "coordinator/text/call_reader.h"

namespace bitshard {
namespace {

constexpr std::string_view kMistral = "[TOOL_CALLS]";
constexpr std::string_view kArguments = "[ARGS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::string_view kGranite = "<|tool_call|>";
constexpr size_t kMaxName = 256;

class Reader final : public CallReader {
 public:
  explicit Reader(bool names) : names_(names), call_(/*tools=*/nullptr, &unread_) {}

  State Push(char c, OutputPieces* out) override {
    if (at_ == At::kCall) {
      const State state = call_.Push(c, out);
      if (state != State::kDone) return state;
      at_ = At::kCommaOrEnd;
      return list_ ? State::kMore : State::kDone;
    }
    unread_.push_back(c);
    if (at_ == At::kName) return PushName(c);
    if (at_ == At::kBody) return PushBody(c, out);
    if (IsJsonSpace(c)) return State::kMore;
    switch (at_) {
      case At::kOpen:
        if (c == '[') {
          list_ = true;
          at_ = At::kItem;
          return State::kMore;
        }
        if (c != '{' && names_) {
          at_ = At::kName;
          return PushName(c);
        }
        [[fallthrough]];
      case At::kItem:
        if (c != '{') return State::kBad;
        unread_.pop_back();
        call_ = JsonCall(/*tools=*/nullptr, &unread_);
        at_ = At::kCall;
        return Push(c, out);
      default:  // kCommaOrEnd
        at_ = At::kItem;
        return c == ']' ? State::kDone : c == ',' ? State::kMore : State::kBad;
    }
  }

  State Finish(OutputPieces*) override {
    return at_ == At::kCommaOrEnd ? State::kDone : State::kBad;
  }

  void Flush(OutputPieces* out) override {
    if (at_ == At::kCall) call_.Flush(out);
    if (at_ == At::kBody && begun_) {
      out->Arguments(unread_, unread_);
      unread_.clear();
    }
  }

 private:
  enum class At { kOpen, kItem, kCall, kCommaOrEnd, kName, kBody };

  // name[ARGS], name[CALL_ID]id[ARGS]
  State PushName(char c) {
    name_.push_back(c);
    if (name_.size() > kMaxName || static_cast<unsigned char>(c) < 0x20) return State::kBad;
    if (!name_.ends_with(kArguments)) return State::kMore;
    name_.resize(name_.size() - kArguments.size());
    if (const size_t id = name_.find(kCallId); id != name_.npos) {
      id_ = name_.substr(id + kCallId.size());
      name_.resize(id);
    }
    at_ = At::kBody;
    return name_.empty() ? State::kBad : State::kMore;
  }

  State PushBody(char c, OutputPieces* out) {
    if (!begun_ && IsJsonSpace(c)) return State::kMore;
    if (!begun_) {
      if (c != '{') return State::kBad;
      unread_.pop_back();
      out->BeginCall(name_, id_, unread_);
      unread_.assign(1, c);
      begun_ = true;
    }
    const JsonScanner::State scan = scanner_.Push(c);
    if (scan == JsonScanner::State::kMore) return State::kMore;
    if (scan != JsonScanner::State::kDone) {
      unread_.pop_back();
      Flush(out);
      unread_.assign(1, c);
      return State::kBad;
    }
    Flush(out);
    out->EndCall("");
    return State::kDone;
  }

  const bool names_;
  At at_ = At::kOpen;
  bool list_ = false;
  JsonCall call_;
  std::string name_;
  std::string id_;
  bool begun_ = false;
  JsonScanner scanner_;
};

class Parser final : public SectionParser {
 public:
  explicit Parser(std::string_view marker)
      : SectionParser({{marker}}, /*json_at_start=*/false), names_(marker == kMistral) {}

 private:
  std::unique_ptr<CallReader> Open(std::string_view) override {
    return std::make_unique<Reader>(names_);
  }
  const bool names_;
};

const RegisterOutputDialect kRegisteredMistral(
    {.name = "mistral",
     .part = OutputDialect::Part::kToolCalls,
     .fit = [](std::string_view source) { return source.find(kMistral) != source.npos ? 20 : 0; },
     .markers = {kMistral, kArguments, kCallId},
     .make = [](const OutputParserOptions&, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(kMistral); }});

const RegisterOutputDialect kRegisteredGranite(
    {.name = "granite",
     .part = OutputDialect::Part::kToolCalls,
     .fit = [](std::string_view source) { return source.find(kGranite) != source.npos ? 20 : 0; },
     .markers = {kGranite},
     .make = [](const OutputParserOptions&, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(kGranite); }});

}  // namespace
}  // namespace bitshard
