#include "coordinator/text/call_reader.h"

#include <algorithm>
#include <utility>

namespace bitshard {
namespace {

using State = CallReader::State;
using Scan = JsonScanner::State;

// White space that is held back in front of a marker.
constexpr size_t kMaxHeldSpace = 64;

}  // namespace

bool JsonCall::TakesName(const std::string& name) const {
  if (name.empty()) return false;
  return tools_ == nullptr || std::any_of(tools_->begin(), tools_->end(),
                                          [&](const ChatTool& t) { return t.name == name; });
}

void JsonCall::Begin(std::string_view arguments, OutputPieces* out) {
  begun_ = true;
  out->BeginCall(name_, id_, *unread_);
  unread_->clear();
  if (!arguments.empty()) out->Arguments(arguments, "");
}

State JsonCall::Push(char c, OutputPieces* out) {
  unread_->push_back(c);
  switch (at_) {
    case At::kOpen:
      if (IsJsonSpace(c)) return State::kMore;
      at_ = At::kKeyOrEnd;
      return c == '{' ? State::kMore : State::kBad;
    case At::kKeyOrEnd:
    case At::kKey:
      if (IsJsonSpace(c)) return State::kMore;
      if (c == '}' && at_ == At::kKeyOrEnd) return End(out);
      if (c != '"') return State::kBad;
      at_ = At::kInKey;
      scanner_ = JsonScanner();
      scanner_.Push(c);
      token_ = "\"";
      return State::kMore;
    case At::kInKey: {
      token_.push_back(c);
      const Scan scan = scanner_.Push(c);
      if (scan == Scan::kDone) {
        key_ = DecodeJsonString(token_);
        at_ = At::kColon;
      }
      return scan == Scan::kBad ? State::kBad : State::kMore;
    }
    case At::kColon:
      if (IsJsonSpace(c)) return State::kMore;
      at_ = At::kValue;
      return c == ':' ? State::kMore : State::kBad;
    case At::kValue:
      if (IsJsonSpace(c)) return State::kMore;
      at_ = At::kInValue;
      scanner_ = JsonScanner();
      token_.clear();
      streaming_ = IsArguments() && c == '{' && !has_arguments_ && !name_.empty();
      if (streaming_ && !begun_) {
        unread_->pop_back();
        Begin("", out);
        unread_->push_back(c);
      }
      [[fallthrough]];
    case At::kInValue: {
      const Scan scan = scanner_.Push(c);
      if (scan == Scan::kBad) {
        if (streaming_) {  // all before it is arguments, this is not
          unread_->pop_back();
          Flush(out);
          unread_->push_back(c);
          streaming_ = false;
        }
        return State::kBad;
      }
      if (scan != Scan::kBefore) token_.push_back(c);
      if (scan == Scan::kMore) return State::kMore;
      const State state = ValueEnded(out);
      if (state == State::kBad || scan == Scan::kDone) return state;
      unread_->pop_back();
      return Push(c, out);
    }
    case At::kCommaOrEnd:
      if (IsJsonSpace(c)) return State::kMore;
      if (c == '}') return End(out);
      at_ = At::kKey;
      return c == ',' ? State::kMore : State::kBad;
  }
  return State::kBad;
}

State JsonCall::ValueEnded(OutputPieces* out) {
  at_ = At::kCommaOrEnd;
  if (streaming_) {
    Flush(out);
    streaming_ = false;
    has_arguments_ = true;
    return State::kMore;
  }
  if (key_ == "name" && name_.empty()) {
    name_ = token_.starts_with('"') ? DecodeJsonString(token_) : "";
    if (!TakesName(name_)) return State::kBad;
    if (has_arguments_) Begin(std::exchange(arguments_, ""), out);
  } else if (key_ == "id" && token_.starts_with('"')) {
    id_ = DecodeJsonString(token_);
  } else if (IsArguments() && !has_arguments_) {
    arguments_ = token_;
    if (token_.starts_with('"')) {  // JSON in a string
      arguments_ = DecodeJsonString(token_);
      if (!IsJson(arguments_)) return State::kBad;
    }
    if (arguments_ == "null") arguments_ = "{}";
    if (arguments_.find_first_not_of(" \t\r\n") == std::string::npos ||
        arguments_[arguments_.find_first_not_of(" \t\r\n")] != '{') {
      return State::kBad;
    }
    has_arguments_ = true;
    if (!name_.empty()) Begin(std::exchange(arguments_, ""), out);
  }
  return State::kMore;
}

State JsonCall::End(OutputPieces* out) {
  if (name_.empty()) return State::kBad;
  if (!begun_) Begin("{}", out);
  out->EndCall(*unread_);
  unread_->clear();
  return State::kDone;
}

void JsonCall::Flush(OutputPieces* out) {
  if (!streaming_ || unread_->empty()) return;
  out->Arguments(*unread_, *unread_);
  unread_->clear();
}

bool SectionParser::MayBecomeMarker(std::string_view held) const {
  const size_t begin = held.find_first_not_of(" \t\r\n");
  if (begin == held.npos) return held.size() <= kMaxHeldSpace;
  if (begin > kMaxHeldSpace) return false;
  return std::any_of(markers_.begin(), markers_.end(), [&](const Marker& marker) {
    return marker.text.starts_with(held.substr(begin));
  });
}

void SectionParser::PushText(char c, OutputPieces* out) {
  held_.push_back(c);
  const size_t begin = held_.find_first_not_of(" \t\r\n");
  if (begin != held_.npos) {
    const std::string_view word = std::string_view(held_).substr(begin);
    const bool json = json_at_start_ && only_space_ && word == "{";
    const auto marker = std::find_if(markers_.begin(), markers_.end(),
                                     [&](const Marker& m) { return m.text == word; });
    if (marker != markers_.end() && !marker->opens) {
      out->Markup(std::exchange(held_, ""));
      after_markup_ = true;
      only_space_ = false;
      return;
    }
    if (json || marker != markers_.end()) {
      section_ = Open(json ? std::string_view() : marker->text);
      only_space_ = false;
      if (json) held_.pop_back();
      section_->unread() = std::exchange(held_, "");
      if (json) PushSection('{', out);
      return;
    }
  }
  if (MayBecomeMarker(held_)) return;
  // The shortest beginning goes that leaves what may still become a marker.
  size_t kept = 1;
  const size_t space = std::min(begin, held_.size());
  if (space > 0 && space < held_.size()) kept = space;  // else no place in it would do
  while (kept < held_.size() && !MayBecomeMarker(std::string_view(held_).substr(kept))) ++kept;
  const std::string_view gone = std::string_view(held_).substr(0, kept);
  const size_t blank = after_markup_ ? std::min(gone.find_first_not_of(" \t\r\n"), gone.size()) : 0;
  out->Markup(gone.substr(0, blank));
  out->Text(gone.substr(blank));
  if (blank < gone.size()) after_markup_ = only_space_ = false;
  held_.erase(0, kept);
}

void SectionParser::GiveUp(OutputPieces* out) {
  std::string rest = std::move(section_->unread());
  section_.reset();
  if (rest.empty()) return;
  // The marker itself, and white space before it, is text now; the rest is looked at again.
  size_t marker = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
  marker = std::min(marker + 1, rest.size());
  const size_t blank = after_markup_ ? std::min(rest.find_first_not_of(" \t\r\n"), marker) : 0;
  out->Markup(std::string_view(rest).substr(0, blank));
  out->Text(std::string_view(rest).substr(blank, marker - blank));
  after_markup_ = false;
  for (const char c : std::string_view(rest).substr(marker)) {
    if (section_ != nullptr) {
      PushSection(c, out);
    } else {
      PushText(c, out);
    }
  }
}

void SectionParser::PushSection(char c, OutputPieces* out) {
  const State state = section_->Push(c, out);
  if (state == State::kMore) return;
  if (state == State::kBad) return GiveUp(out);
  out->Markup(section_->unread());
  section_.reset();
  after_markup_ = true;
}

void SectionParser::Push(std::string_view text, OutputPieces* out) {
  for (const char c : text) {
    if (section_ != nullptr) {
      PushSection(c, out);
    } else {
      PushText(c, out);
    }
  }
  if (section_ != nullptr) section_->Flush(out);
}

void SectionParser::Finish(OutputPieces* out) {
  while (section_ != nullptr) {
    section_->Flush(out);
    if (section_->Finish(out) == State::kDone) {
      out->Markup(section_->unread());
      section_.reset();
      after_markup_ = true;
    } else {
      GiveUp(out);
    }
  }
  const size_t blank =
      after_markup_ ? std::min(held_.find_first_not_of(" \t\r\n"), held_.size()) : 0;
  out->Markup(std::string_view(held_).substr(0, blank));
  out->Text(std::string_view(held_).substr(blank));
  held_.clear();
}

}  // namespace bitshard
