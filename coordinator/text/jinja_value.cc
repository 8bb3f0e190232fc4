#include "coordinator/text/jinja_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/string_view.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_writer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Reading 1 KiB takes about as long as a step of the interpreter does.
constexpr uint64_t kBytesPerStep = 1024;
// Of a list's item that is a string of its own: its place, and what it takes beside its bytes.
constexpr uint64_t kItemBytes = 200;
constexpr size_t kMaxShownName = 64, kMaxShownError = 4096;
constexpr int kMaxNesting = 100;

std::string_view WholeCharacters(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      Concat("a value is nested deeper than ", kMaxNesting, " or contains itself"));
}

// repr() of Python for text: single quotes, unless it has those and no double ones.
absl::Status AppendRepr(const JinjaText& source, JinjaWriter* out) {
  const std::string_view text = source.bytes();
  const bool use_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = use_double ? '"' : '\'';
  RETURN_IF_ERROR(out->Append(std::string_view(&quote, 1)));
  size_t plain = 0;  // everything before it is out
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = CodePointAt(text, at);
    std::string escaped;
    if (c.value == static_cast<char32_t>(quote) || c.value == U'\\') {
      escaped = {'\\', text[at]};
    } else if (c.value == U'\n') {
      escaped = "\\n";
    } else if (c.value == U'\r') {
      escaped = "\\r";
    } else if (c.value == U'\t') {
      escaped = "\\t";
    } else if (!IsPrintable(c.value)) {
      const int digits = c.value <= 0xFF ? 2 : c.value <= 0xFFFF ? 4 : 8;
      escaped = digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      for (int i = digits - 1; i >= 0; --i) {
        escaped.push_back("0123456789abcdef"[c.value >> 4 * i & 15]);
      }
    }
    if (!escaped.empty()) {
      RETURN_IF_ERROR(out->Append(source, plain, at - plain));
      RETURN_IF_ERROR(out->AppendInPlaceOf(source, at, escaped));
      plain = at + c.bytes;
    }
    at += c.bytes;
  }
  RETURN_IF_ERROR(out->Append(source, plain, text.size() - plain));
  return out->Append(std::string_view(&quote, 1));
}

absl::Status AppendValue(const JinjaValue& value, bool repr, int depth, JinjaHeap* heap,
                         JinjaWriter* out);

absl::Status AppendList(const JinjaList& list, int depth, JinjaHeap* heap, JinjaWriter* out) {
  RETURN_IF_ERROR(out->Append(list.is_tuple ? "(" : "["));
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(out->Append(", "));
    RETURN_IF_ERROR(AppendValue(list.items[i], /*repr=*/true, depth + 1, heap, out));
  }
  if (list.is_tuple && list.items.size() == 1) RETURN_IF_ERROR(out->Append(","));
  return out->Append(list.is_tuple ? ")" : "]");
}

absl::Status AppendDict(const JinjaDict& dict, int depth, JinjaHeap* heap, JinjaWriter* out) {
  RETURN_IF_ERROR(out->Append("{"));
  bool first = true;
  for (const auto& [key, item] : dict.items) {
    if (!first) RETURN_IF_ERROR(out->Append(", "));
    first = false;
    RETURN_IF_ERROR(heap->ChargeStep(key.size()));
    ASSIGN_OR_RETURN(const JinjaValue name, heap->NewKey(dict, key));
    RETURN_IF_ERROR(AppendRepr(name.text(), out));
    RETURN_IF_ERROR(out->Append(": "));
    RETURN_IF_ERROR(AppendValue(item, /*repr=*/true, depth + 1, heap, out));
  }
  return out->Append("}");
}

absl::Status AppendValue(const JinjaValue& value, bool repr, int depth, JinjaHeap* heap,
                         JinjaWriter* out) {
  if (depth > kMaxNesting) return TooDeep();
  RETURN_IF_ERROR(heap->ChargeStep(value.is_string() ? value.string().size() : 0));
  if (value.is_undefined()) return out->Append(repr ? "Undefined" : "");
  if (value.is_none()) return out->Append("None");
  if (value.is_bool()) return out->Append(value.Truthy() ? "True" : "False");
  if (value.is_int()) return out->Append(std::to_string(*value.AsInt()));
  if (value.is_float()) return out->Append(JinjaFloatRepr(value.AsDouble()));
  if (value.is_string()) {
    return repr ? AppendRepr(value.text(), out) : out->Append(value.text());
  }
  if (value.is_list()) return AppendList(value.list(), depth, heap, out);
  if (value.is_dict()) return AppendDict(value.dict(), depth, heap, out);
  return out->Append("<function>");
}

absl::StatusOr<bool> Equals(const JinjaValue& a, const JinjaValue& b, int depth, JinjaHeap* heap) {
  if (depth > kMaxNesting) return TooDeep();
  RETURN_IF_ERROR(heap->ChargeStep(a.is_string() ? a.string().size() : 0));
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return *a.AsInt() == *b.AsInt();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list()) {
    const JinjaList& x = a.list();
    const JinjaList& y = b.list();
    if (x.is_tuple != y.is_tuple || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i) {
      ASSIGN_OR_RETURN(const bool same, Equals(x.items[i], y.items[i], depth + 1, heap));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    const JinjaDict& x = a.dict();
    const JinjaDict& y = b.dict();
    if (x.items.size() != y.items.size()) return false;
    for (const auto& [key, item] : x.items) {
      const JinjaValue* other = y.Find(key);
      if (other == nullptr) return false;
      ASSIGN_OR_RETURN(const bool same, Equals(item, *other, depth + 1, heap));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_function() && b.is_function()) return a.function() == b.function();
  if (a.is_macro() && b.is_macro()) return &a.macro() == &b.macro();
  return (a.is_undefined() && b.is_undefined()) || (a.is_none() && b.is_none());
}

}  // namespace

std::string JinjaShown(std::string_view text) {
  return std::string(WholeCharacters(text, kMaxShownError));
}

// The shortest digits that read back the same; exponents from 1e16 and below 1e-4.
std::string JinjaFloatRepr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  const double size = std::fabs(v);
  const auto format = v != 0 && (size >= 1e16 || size < 1e-4) ? std::chars_format::scientific
                                                              : std::chars_format::fixed;
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v, format);
  std::string text(buffer.data(), end.ptr);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

JinjaValue JinjaValue::MakeUndefined(std::string_view name) {
  // A key may be of any length.
  return JinjaValue(
      std::in_place_type<Undefined>,
      Undefined{std::make_shared<const std::string>(WholeCharacters(name, kMaxShownName))});
}

double JinjaValue::AsDouble() const {
  if (is_float()) return std::get<double>(value_);
  return static_cast<double>(*AsInt());
}

std::optional<int64_t> JinjaValue::AsInt() const {
  if (is_bool()) return std::get<bool>(value_) ? 1 : 0;
  if (is_int()) return std::get<int64_t>(value_);
  return std::nullopt;
}

bool JinjaValue::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return AsDouble() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().items.empty();
  if (is_dict()) return dict().is_namespace || !dict().items.empty();
  return true;
}

std::string_view JinjaValue::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return list().is_tuple ? "tuple" : "list";
  if (is_dict()) return dict().is_namespace ? "Namespace" : "dict";
  return is_macro() ? "Macro" : "function";
}

absl::Status JinjaValue::CheckDefined() const {
  if (!is_undefined()) return absl::OkStatus();
  const std::shared_ptr<const std::string>& name = std::get<Undefined>(value_).name;
  return absl::InvalidArgumentError(
      Concat("'", name == nullptr ? std::string_view("value") : *name, "' is undefined"));
}

const JinjaValue* JinjaDict::Find(std::string_view key) const {
  const auto it = index.find(absl::string_view(key.data(), key.size()));
  return it == index.end() ? nullptr : &items[it->second].second;
}

void JinjaDict::Set(std::string_view key, JinjaValue value) {
  const auto [it, is_new] = index.try_emplace(std::string(key), items.size());
  if (is_new) {
    items.emplace_back(std::string(key), std::move(value));
  } else {
    items[it->second].second = std::move(value);
  }
}

void JinjaDict::Erase(std::string_view key) {
  const auto it = index.find(absl::string_view(key.data(), key.size()));
  const size_t at = it->second;
  index.erase(it);
  items.erase(items.begin() + at);
  for (auto& [name, place] : index) {
    if (place > at) --place;
  }
}

JinjaList* JinjaHeap::NewList(std::vector<JinjaValue> items, bool is_tuple) {
  return &lists_.emplace_back(JinjaList{std::move(items), is_tuple});
}

JinjaDict* JinjaHeap::NewDict() { return &dicts_.emplace_back(); }

absl::Status JinjaHeap::ChargeStep(uint64_t bytes_read) {
  steps_ += 1 + bytes_read / kBytesPerStep;
  if (steps_ <= limits_.steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Concat("the template runs for more than ", limits_.steps, " steps; an endless loop?"));
}

absl::Status JinjaHeap::ChargeBytes(uint64_t bytes) {
  if (bytes <= limits_.bytes && bytes_ + bytes <= limits_.bytes) {
    bytes_ += bytes;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      Concat("the template makes more than ", limits_.bytes, " bytes of values"));
}

absl::Status JinjaHeap::ChargeItems(uint64_t items) {
  return ChargeBytes(items > limits_.bytes ? items : items * kItemBytes);
}

absl::StatusOr<JinjaValue> JinjaHeap::NewText(JinjaText text) {
  RETURN_IF_ERROR(ChargeBytes(text.cost()));
  return JinjaValue::Text(std::move(text));
}

absl::StatusOr<JinjaValue> JinjaHeap::NewSlice(const JinjaText& text, size_t begin, size_t bytes) {
  JinjaWriter slice(this);
  RETURN_IF_ERROR(slice.Append(text, begin, bytes));
  return slice.TakeValue();
}

absl::StatusOr<JinjaValue> JinjaHeap::NewKey(const JinjaDict& dict, const std::string& key) {
  RETURN_IF_ERROR(ChargeBytes(key.size() + sizeof(TextSpan)));
  return JinjaValue::Text(dict.KeyText(key));
}

absl::StatusOr<bool> JinjaEquals(const JinjaValue& a, const JinjaValue& b, JinjaHeap* heap) {
  return Equals(a, b, /*depth=*/0, heap);
}

absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b, JinjaHeap* heap) {
  RETURN_IF_ERROR(a.CheckDefined());
  RETURN_IF_ERROR(b.CheckDefined());
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return *a.AsInt() < *b.AsInt();
    return a.AsDouble() < b.AsDouble();
  }
  // UTF-8 orders like code points, which is Python's order.
  if (a.is_string() && b.is_string()) {
    RETURN_IF_ERROR(heap->ChargeStep(a.string().size()));
    return a.string() < b.string();
  }
  return absl::InvalidArgumentError(
      Concat("'", a.TypeName(), "' and '", b.TypeName(), "' have no order"));
}

absl::StatusOr<JinjaString> JinjaToText(const JinjaValue& value, JinjaHeap* heap) {
  if (value.is_string()) {
    RETURN_IF_ERROR(heap->ChargeStep(value.string().size()));
    return value.shared_text();
  }
  JinjaWriter out(heap);
  RETURN_IF_ERROR(AppendValue(value, /*repr=*/false, /*depth=*/0, heap, &out));
  return out.TakeValue().shared_text();
}

}  // namespace bitshard
