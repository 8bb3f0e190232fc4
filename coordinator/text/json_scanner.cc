#include "coordinator/text/json_scanner.h"

#include "nlohmann/json.hpp"

namespace bitshard {
namespace {

constexpr size_t kMaxDepth = 100;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

JsonScanner::State JsonScanner::Ended() {
  if (open_.empty()) return State::kDone;
  wants_ = Wants::kCommaOrEnd;
  return State::kMore;
}

JsonScanner::State JsonScanner::Close(char c) {
  if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return State::kBad;
  open_.pop_back();
  return Ended();
}

JsonScanner::State JsonScanner::Value(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() == kMaxDepth) return State::kBad;
    open_.push_back(c);
    wants_ = c == '{' ? Wants::kKeyOrEnd : Wants::kValueOrEnd;
    return State::kMore;
  }
  if (c == '"') {
    in_string_ = true;
    is_key_ = false;
    return State::kMore;
  }
  if (c == '-' || IsDigit(c)) {
    in_number_ = true;
    number_ = c == '-' ? Number::kSign : c == '0' ? Number::kZero : Number::kDigits;
    return State::kMore;
  }
  literal_left_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
  return literal_left_.empty() ? State::kBad : State::kMore;
}

JsonScanner::State JsonScanner::InString(char c) {
  if (static_cast<unsigned char>(c) < 0x20) return State::kBad;
  if (hex_left_ > 0) {
    --hex_left_;
    return IsHex(c) ? State::kMore : State::kBad;
  }
  if (escaped_) {
    escaped_ = false;
    if (c == 'u') hex_left_ = 4;
    return std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos ? State::kBad
                                                                             : State::kMore;
  }
  if (c == '\\') {
    escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
    if (!is_key_) return Ended();
    wants_ = Wants::kColon;
  }
  return State::kMore;
}

JsonScanner::State JsonScanner::InNumber(char c) {
  const Number was = number_;
  const bool whole = was == Number::kZero || was == Number::kDigits;
  if (IsDigit(c) && was != Number::kZero) {
    if (was == Number::kSign) {
      number_ = c == '0' ? Number::kZero : Number::kDigits;
    } else if (was == Number::kDot) {
      number_ = Number::kFraction;
    } else if (was == Number::kE || was == Number::kESign) {
      number_ = Number::kExponent;
    }
    return State::kMore;
  }
  if (c == '.' && whole) {
    number_ = Number::kDot;
  } else if ((c == 'e' || c == 'E') && (whole || was == Number::kFraction)) {
    number_ = Number::kE;
  } else if ((c == '+' || c == '-') && was == Number::kE) {
    number_ = Number::kESign;
  } else if (whole || was == Number::kFraction || was == Number::kExponent) {
    in_number_ = false;
    return Ended() == State::kDone ? State::kBefore : Push(c);
  } else {
    return State::kBad;
  }
  return State::kMore;
}

JsonScanner::State JsonScanner::Push(char c) {
  if (in_string_) return InString(c);
  if (in_number_) return InNumber(c);
  if (!literal_left_.empty()) {
    if (c != literal_left_.front()) return State::kBad;
    literal_left_.remove_prefix(1);
    return literal_left_.empty() ? Ended() : State::kMore;
  }
  if (IsJsonSpace(c)) return State::kMore;
  switch (wants_) {
    case Wants::kValueOrEnd:
      if (c == ']') return Close(c);
      [[fallthrough]];
    case Wants::kValue:
      return Value(c);
    case Wants::kKeyOrEnd:
      if (c == '}') return Close(c);
      [[fallthrough]];
    case Wants::kKey:
      in_string_ = is_key_ = true;
      return c == '"' ? State::kMore : State::kBad;
    case Wants::kColon:
      wants_ = Wants::kValue;
      return c == ':' ? State::kMore : State::kBad;
    case Wants::kCommaOrEnd:
      if (c == '}' || c == ']') return Close(c);
      wants_ = open_.back() == '{' ? Wants::kKey : Wants::kValue;
      return c == ',' ? State::kMore : State::kBad;
  }
  return State::kBad;
}

std::string DecodeJsonString(std::string_view json) {
  // nlohmann refuses lone surrogates, which models do write: they are taken out of its way.
  std::string repaired;
  const auto unit = [&](size_t at) -> int {
    if (json.substr(at, 2) != "\\u" || at + 6 > json.size()) return -1;
    return static_cast<int>(std::stoul(std::string(json.substr(at + 2, 4)), nullptr, 16));
  };
  for (size_t at = 0; at < json.size();) {
    if (json[at] != '\\') {
      repaired.push_back(json[at++]);
      continue;
    }
    const int high = unit(at);
    size_t bytes = high < 0 ? 2 : 6;
    if (high >= 0xD800 && high <= 0xDFFF) {
      const int low = high < 0xDC00 ? unit(at + 6) : -1;
      if (low >= 0xDC00 && low <= 0xDFFF) {
        bytes = 12;
      } else {
        repaired += "\xEF\xBF\xBD";
        at += 6;
        continue;
      }
    }
    repaired += json.substr(at, bytes);
    at += bytes;
  }
  const nlohmann::json value = nlohmann::json::parse(repaired, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string EncodeJsonString(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

bool IsJson(std::string_view text) { return nlohmann::json::accept(text.begin(), text.end()); }

}  // namespace bitshard
