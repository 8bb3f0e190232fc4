// gpt-oss: messages of the form <|channel|>CHANNEL [to=RECIPIENT]<|message|>TEXT<|end|>, several in
// one answer. The channel "analysis" is reasoning, a recipient makes a call of a tool, all else is
// the answer. The prompt has opened the first message.
#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/text/json_scanner.h"
#include "coordinator/text/output_parser.h"

namespace bitshard {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessageEnd = "<|end|>";
constexpr std::string_view kCallEnd = "<|call|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kTo = " to=";
constexpr size_t kMaxHeader = 512;

class Parser final : public OutputParser {
 public:
  void Push(std::string_view text, OutputPieces* out) override {
    for (const char c : text) PushByte(c, out);
    FlushArguments(out);
  }

  void Finish(OutputPieces* out) override {
    if (at_ == At::kHeader) {
      if (held_.starts_with('<')) {  // the header of a message that did not begin any more
        out->Markup(held_);
      } else {
        out->Text(held_);
      }
    } else {
      for (const char c : held_) Put(c, out);
      EndMessage(out);
      out->Text(std::exchange(pending_, ""));
    }
    held_.clear();
  }

 private:
  enum class At { kHeader, kBody };
  enum class Is { kText, kReasoning, kCall, kBrokenCall };

  void PushByte(char c, OutputPieces* out) {
    held_.push_back(c);
    if (at_ == At::kHeader) return Header(out);
    while (!held_.empty()) {
      for (const std::string_view marker : {kMessageEnd, kCallEnd, kReturn, kStart, kChannel}) {
        if (held_ != marker) continue;
        EndMessage(out);
        at_ = At::kHeader;
        if (marker != kStart && marker != kChannel) out->Markup(std::exchange(held_, ""));
        return;
      }
      if (MayBecomeMarker()) return;
      const char first = held_.front();
      held_.erase(0, 1);
      Put(first, out);
    }
  }

  bool MayBecomeMarker() const {
    for (const std::string_view marker : {kMessageEnd, kCallEnd, kReturn, kStart, kChannel}) {
      if (marker.starts_with(held_)) return true;
    }
    return false;
  }

  // A header goes on for as long as it looks like one.
  void Header(OutputPieces* out) {
    if (held_.ends_with(kMessage)) return BeginMessage(out);
    std::string_view rest = held_;
    const auto skip = [&](std::string_view word) {  // or the beginning of it, to the end
      if (word.starts_with(rest)) rest = {};
      if (rest.starts_with(word)) rest.remove_prefix(word.size());
    };
    skip(kStart);
    skip(kAssistant);
    bool header = rest.empty();
    for (const std::string_view begin : {kChannel, kTo}) {
      header |= rest.starts_with(begin) || begin.starts_with(rest);
    }
    if (header && held_.size() <= kMaxHeader && held_.find('\n') == held_.npos) return;
    // No message: a model that goes on as if it had no channels.
    at_ = At::kBody;
    is_ = Is::kText;
    const std::string again = std::exchange(held_, "");
    out->Text(std::string_view(again).substr(0, 1));
    for (const char c : std::string_view(again).substr(1)) PushByte(c, out);
  }

  void BeginMessage(OutputPieces* out) {
    std::string_view header = held_;
    header.remove_suffix(kMessage.size());
    const auto word_after = [&](std::string_view mark) {
      const size_t at = header.find(mark);
      if (at == header.npos) return std::string_view();
      const std::string_view rest = header.substr(at + mark.size());
      return rest.substr(0, rest.find_first_of(" \t<"));
    };
    const std::string_view recipient = word_after("to=");
    name_ = recipient.starts_with(kFunctions) ? recipient.substr(kFunctions.size()) : recipient;
    at_ = At::kBody;
    if (!name_.empty()) {
      is_ = Is::kCall;
      pending_ = std::exchange(held_, "");
      begun_ = ended_ = false;
      scanner_ = JsonScanner();
      return;
    }
    is_ = word_after(kChannel) == "analysis" ? Is::kReasoning : Is::kText;
    out->Markup(std::exchange(held_, ""));
  }

  void Put(char c, OutputPieces* out) {
    const std::string_view byte(&c, 1);
    switch (is_) {
      case Is::kText:
      case Is::kBrokenCall:
        return out->Text(byte);
      case Is::kReasoning:
        return out->Reasoning(byte);
      case Is::kCall:
        break;
    }
    if (ended_ && IsJsonSpace(c)) return out->Markup(byte);
    if (!begun_ && IsJsonSpace(c)) return pending_.push_back(c);
    if (!begun_ && c == '{') {
      out->BeginCall(name_, "", std::exchange(pending_, ""));
      begun_ = true;
    }
    const auto scan = begun_ && !ended_ ? scanner_.Push(c) : JsonScanner::State::kBad;
    if (scan == JsonScanner::State::kBad || scan == JsonScanner::State::kBefore) {
      FlushArguments(out);
      out->Text(std::exchange(pending_, ""));
      out->Text(byte);
      is_ = Is::kBrokenCall;
      return;
    }
    pending_.push_back(c);
    if (scan != JsonScanner::State::kDone) return;
    FlushArguments(out);
    out->EndCall("");
    ended_ = true;
  }

  void FlushArguments(OutputPieces* out) {
    if (is_ != Is::kCall || !begun_ || pending_.empty()) return;
    out->Arguments(pending_, pending_);
    pending_.clear();
  }

  void EndMessage(OutputPieces* out) {
    FlushArguments(out);
    if (is_ == Is::kCall && !begun_) out->Text(std::exchange(pending_, ""));
    is_ = Is::kText;
  }

  At at_ = At::kHeader;
  Is is_ = Is::kText;
  std::string held_;
  std::string name_;
  std::string pending_;  // of a call: its header, then arguments that have not gone out
  bool begun_ = false;
  bool ended_ = false;
  JsonScanner scanner_;
};

const RegisterOutputDialect kRegistered(
    {.name = "harmony",
     .part = OutputDialect::Part::kBoth,
     .fit =
         [](std::string_view source) {
           return source.find(kChannel) != source.npos && source.find(kMessage) != source.npos ? 50
                                                                                               : 0;
         },
     .markers = {kStart, kChannel, kMessage, kConstrain, kMessageEnd, kCallEnd, kReturn},
     .make = [](const OutputParserOptions&, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(); }});

}  // namespace
}  // namespace bitshard
