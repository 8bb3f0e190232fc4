#include "coordinator/text/jinja_methods.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_lexer.h"
#include "coordinator/text/jinja_writer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

absl::Status NoSuchMethod(const Value& self, std::string_view method) {
  RETURN_IF_ERROR(self.CheckDefined());
  return absl::InvalidArgumentError(
      Concat("'", self.TypeName(), "' object has no method '", method, "'"));
}

absl::StatusOr<std::string_view> TextArgument(const Arguments& arguments, size_t position,
                                              std::string_view method) {
  const Value* value = arguments.Get(position, "");
  if (value == nullptr || !value->is_string()) {
    return absl::InvalidArgumentError(
        Concat("'", method, "': argument ", position + 1, " must be a string"));
  }
  return std::string_view(value->string());
}

// Removes the characters of `set` (white space without one) from the ends.
std::string_view StripSet(std::string_view text, std::optional<std::string_view> set, bool left,
                          bool right) {
  if (!set.has_value()) return StripJinjaSpace(text, left, right);
  const auto in_set = [&](std::string_view character) {
    for (size_t at = 0; at < set->size();) {
      const int bytes = CodePointAt(*set, at).bytes;
      if (set->substr(at, bytes) == character) return true;
      at += bytes;
    }
    return false;
  };
  while (left && !text.empty()) {
    const int bytes = CodePointAt(text, 0).bytes;
    if (!in_set(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!in_set(text.substr(last))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

template <bool kLeft, bool kRight>
absl::StatusOr<Value> Strip(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "strip");
  RETURN_IF_ERROR(arguments.Check("strip", 1));
  std::optional<std::string_view> set;
  if (!arguments.positional.empty() && !arguments.positional[0].is_none()) {
    ASSIGN_OR_RETURN(set, TextArgument(arguments, 0, "strip"));
  }
  const std::string_view kept = StripSet(self.string(), set, kLeft, kRight);
  return heap->NewSlice(self.text(), kept.data() - self.string().data(), kept.size());
}

// A text, or a tuple of texts of which one fits.
template <bool kEnd>
absl::StatusOr<Value> StartsWith(const Value& self, const Arguments& arguments, JinjaHeap*) {
  constexpr std::string_view kName = kEnd ? "endswith" : "startswith";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 1));
  Arguments parts = arguments;
  if (!parts.positional.empty() && parts.positional[0].is_list()) {
    parts.positional = arguments.positional[0].list().items;
    if (parts.positional.empty()) return Value::Bool(false);
  }
  bool fits = false;
  for (size_t i = 0; i < std::max<size_t>(parts.positional.size(), 1); ++i) {
    ASSIGN_OR_RETURN(const std::string_view part, TextArgument(parts, i, kName));
    fits |= kEnd ? self.string().ends_with(part) : self.string().starts_with(part);
  }
  return Value::Bool(fits);
}

absl::StatusOr<Value> Split(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "split");
  RETURN_IF_ERROR(arguments.Check("split", 2, {"sep", "maxsplit"}));
  int64_t left = -1;  // cuts that may still be made; negative: no limit
  if (const Value* limit = arguments.Get(1, "maxsplit")) {
    if (!limit->AsInt().has_value()) {
      return absl::InvalidArgumentError("'split': maxsplit must be an integer");
    }
    left = *limit->AsInt();
  }
  std::string_view text = self.string();
  std::vector<Value> parts;
  const auto put = [&](std::string_view part) -> absl::Status {
    RETURN_IF_ERROR(heap->ChargeItems(1));
    ASSIGN_OR_RETURN(Value value,
                     heap->NewSlice(self.text(), part.data() - self.string().data(), part.size()));
    parts.push_back(std::move(value));
    return absl::OkStatus();
  };
  const Value* separator = arguments.Get(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    text = StripJinjaSpace(text, /*left=*/true, /*right=*/false);
    while (!text.empty()) {
      size_t end = 0;
      while (end < text.size() && !IsJinjaSpace(CodePointAt(text, end).value)) {
        end += CodePointAt(text, end).bytes;
      }
      if (left-- == 0) {
        RETURN_IF_ERROR(put(StripJinjaSpace(text, /*left=*/false, /*right=*/true)));
        break;
      }
      RETURN_IF_ERROR(put(text.substr(0, end)));
      text = StripJinjaSpace(text.substr(end), /*left=*/true, /*right=*/false);
    }
    return Value::List(heap->NewList(std::move(parts)));
  }
  if (!separator->is_string() || separator->string().empty()) {
    return absl::InvalidArgumentError("'split': the separator must be a string and not empty");
  }
  const std::string_view cut = separator->string();
  while (left-- != 0) {
    const size_t at = text.find(cut);
    if (at == text.npos) break;
    RETURN_IF_ERROR(put(text.substr(0, at)));
    text.remove_prefix(at + cut.size());
  }
  RETURN_IF_ERROR(put(text));
  return Value::List(heap->NewList(std::move(parts)));
}

absl::StatusOr<Value> Replace(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "replace");
  RETURN_IF_ERROR(arguments.Check("replace", 3));
  RETURN_IF_ERROR(TextArgument(arguments, 0, "replace").status());
  RETURN_IF_ERROR(TextArgument(arguments, 1, "replace").status());
  int64_t limit = -1;
  if (const Value* count = arguments.Get(2, "")) limit = count->AsInt().value_or(-1);
  return JinjaReplace(self.text(), arguments.positional[0].text(), arguments.positional[1].text(),
                      limit, heap);
}

template <bool kUpper>
absl::StatusOr<Value> ChangeCase(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  constexpr std::string_view kName = kUpper ? "upper" : "lower";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 0));
  return JinjaChangeCase(self.text(), kUpper, heap);
}

template <bool kEachWord>
absl::StatusOr<Value> Capitalize(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  constexpr std::string_view kName = kEachWord ? "title" : "capitalize";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 0));
  return JinjaCapitalize(self.text(), kEachWord, heap);
}

absl::StatusOr<Value> Join(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "join");
  RETURN_IF_ERROR(arguments.Check("join", 1));
  if (arguments.positional.empty()) return absl::InvalidArgumentError("'join' takes a list");
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(arguments.positional[0], heap));
  for (const Value& item : items) {
    if (!item.is_string()) {
      return absl::InvalidArgumentError(
          Concat("sequence item: expected str instance, ", item.TypeName(), " found"));
    }
  }
  return JinjaJoin(items, self.text(), heap);
}

// Where a text begins in this one, in characters; -1 when nowhere.
template <bool kLast>
absl::StatusOr<Value> Find(const Value& self, const Arguments& arguments, JinjaHeap*) {
  constexpr std::string_view kName = kLast ? "rfind" : "find";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 1));
  ASSIGN_OR_RETURN(const std::string_view part, TextArgument(arguments, 0, kName));
  const size_t at = kLast ? self.string().rfind(part) : self.string().find(part);
  if (at == std::string::npos) return Value::Int(-1);
  return Value::Int(std::count_if(self.string().begin(), self.string().begin() + at, [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// How often: a text in a text, a value in a list.
absl::StatusOr<Value> Count(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string() && !self.is_list()) return NoSuchMethod(self, "count");
  RETURN_IF_ERROR(arguments.Check("count", 1));
  int64_t count = 0;
  if (self.is_list()) {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("'count' takes a value");
    for (const Value& item : self.list().items) {
      ASSIGN_OR_RETURN(const bool same, JinjaEquals(item, arguments.positional[0], heap));
      count += same;
    }
    return Value::Int(count);
  }
  ASSIGN_OR_RETURN(const std::string_view part, TextArgument(arguments, 0, "count"));
  if (part.empty()) return absl::UnimplementedError("'count' of an empty text is not supported");
  for (size_t at = self.string().find(part); at != std::string::npos;
       at = self.string().find(part, at + part.size())) {
    ++count;
  }
  return Value::Int(count);
}

template <bool kPrefix>
absl::StatusOr<Value> RemoveAffix(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  constexpr std::string_view kName = kPrefix ? "removeprefix" : "removesuffix";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 1));
  ASSIGN_OR_RETURN(const std::string_view part, TextArgument(arguments, 0, kName));
  const std::string_view text = self.string();
  const bool has = kPrefix ? text.starts_with(part) : text.ends_with(part);
  if (!has) return self;
  return heap->NewSlice(self.text(), kPrefix ? part.size() : 0, self.string().size() - part.size());
}

absl::StatusOr<Value> SplitLines(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "splitlines");
  RETURN_IF_ERROR(arguments.Check("splitlines", 0));
  std::vector<Value> lines;
  const std::string& text = self.string();
  for (size_t at = 0; at < text.size();) {
    RETURN_IF_ERROR(heap->ChargeItems(1));
    const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    ASSIGN_OR_RETURN(Value line, heap->NewSlice(self.text(), at, end - at));
    lines.push_back(std::move(line));
    at = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return Value::List(heap->NewList(std::move(lines)));
}

absl::StatusOr<Value> Format(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_string()) return NoSuchMethod(self, "format");
  const std::string_view text = self.string();
  JinjaWriter out(heap);
  size_t next = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    RETURN_IF_ERROR(out.Append(self.text(), at, brace - at));
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {  // {{ and }}
      RETURN_IF_ERROR(out.Append(self.text(), brace, 1));
      at = brace + 2;
      continue;
    }
    const size_t end = text.find('}', brace);
    if (text[brace] == '}' || end == text.npos) {
      return absl::InvalidArgumentError("'format': a brace stands alone");
    }
    const std::string name(text.substr(brace + 1, end - brace - 1));
    if (name.find_first_of(":!.[") != name.npos) {
      return absl::UnimplementedError(
          Concat("'format': the field '{", name, "}' is not supported; {}, {0} and {name} are"));
    }
    const Value* value = nullptr;
    if (name.empty()) {
      value = arguments.Get(next++, "\n");
    } else if (name.find_first_not_of("0123456789") == name.npos && name.size() < 4) {
      value = arguments.Get(std::stoul(name), "\n");
    } else {
      value = arguments.Get(arguments.positional.size(), name);
    }
    if (value == nullptr) {
      return absl::InvalidArgumentError(Concat("'format': no argument for '{", name, "}'"));
    }
    ASSIGN_OR_RETURN(const JinjaString piece, JinjaToText(*value, heap));
    RETURN_IF_ERROR(out.Append(*piece));
    at = end + 1;
  }
  return out.TakeValue();
}

absl::StatusOr<Value> Append(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_list() || self.list().is_tuple) return NoSuchMethod(self, "append");
  RETURN_IF_ERROR(arguments.Check("append", 1));
  if (arguments.positional.empty()) return absl::InvalidArgumentError("'append' takes a value");
  RETURN_IF_ERROR(heap->ChargeBytes(2 * sizeof(Value)));
  self.list().items.push_back(arguments.positional[0]);
  return Value::MakeNone();
}

absl::StatusOr<Value> Pop(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  RETURN_IF_ERROR(arguments.Check("pop", 2));
  const Value* key = arguments.Get(0, "");
  if (self.is_dict() && !self.dict().is_namespace && key != nullptr && key->is_string()) {
    if (const Value* found = self.dict().Find(key->string())) {
      const Value value = *found;
      RETURN_IF_ERROR(heap->ChargeStep(self.dict().items.size() * sizeof(Value)));
      self.dict().Erase(key->string());
      return value;
    }
    if (arguments.positional.size() > 1) return arguments.positional[1];
    return absl::InvalidArgumentError(Concat("'pop': no key '", key->string(), "'"));
  }
  if (!self.is_list() || self.list().is_tuple) return NoSuchMethod(self, "pop");
  std::vector<Value>& items = self.list().items;
  const int64_t size = static_cast<int64_t>(items.size());
  int64_t at = key == nullptr ? -1 : key->AsInt().value_or(size);
  if (at < 0) at += size;
  if (at < 0 || at >= size) return absl::InvalidArgumentError("'pop': index out of range");
  RETURN_IF_ERROR(heap->ChargeStep(items.size() * sizeof(Value)));
  const Value value = items[at];
  items.erase(items.begin() + at);
  return value;
}

// loop.cycle(a, b): a in the first round, b in the second, a in the third.
absl::StatusOr<Value> Cycle(const Value& self, const Arguments& arguments, JinjaHeap*) {
  const Value* round = self.is_dict() ? self.dict().Find("index0") : nullptr;
  if (round == nullptr || !round->is_int()) return NoSuchMethod(self, "cycle");
  if (arguments.positional.empty()) return absl::InvalidArgumentError("'cycle' takes values");
  return arguments.positional[*round->AsInt() % arguments.positional.size()];
}

absl::StatusOr<Value> Get(const Value& self, const Arguments& arguments, JinjaHeap*) {
  if (!self.is_dict()) return NoSuchMethod(self, "get");
  RETURN_IF_ERROR(arguments.Check("get", 2));
  if (arguments.positional.empty()) {
    return absl::InvalidArgumentError("'get' takes a key");
  }
  const Value& key = arguments.positional[0];
  const Value* found = key.is_string() ? self.dict().Find(key.string()) : nullptr;
  if (found != nullptr) return *found;
  return arguments.positional.size() > 1 ? arguments.positional[1] : Value::MakeNone();
}

enum class DictView { kKeys, kValues, kItems };

template <DictView kView>
absl::StatusOr<Value> View(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  if (!self.is_dict()) return NoSuchMethod(self, "items");
  RETURN_IF_ERROR(arguments.Check("items", 0));
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().items) {
    RETURN_IF_ERROR(heap->ChargeItems(2));
    if (kView == DictView::kValues) {
      out.push_back(value);
      continue;
    }
    ASSIGN_OR_RETURN(Value name, heap->NewKey(self.dict(), key));
    if (kView == DictView::kItems) {
      std::vector<Value> pair = {std::move(name), value};
      name = Value::List(heap->NewList(std::move(pair), /*is_tuple=*/true));
    }
    out.push_back(std::move(name));
  }
  return Value::List(heap->NewList(std::move(out)));
}

constexpr std::pair<std::string_view, JinjaMethodFn> kMethods[] = {
    {"append", Append},
    {"capitalize", Capitalize<false>},
    {"count", Count},
    {"cycle", Cycle},
    {"endswith", StartsWith<true>},
    {"find", Find<false>},
    {"format", Format},
    {"get", Get},
    {"items", View<DictView::kItems>},
    {"join", Join},
    {"keys", View<DictView::kKeys>},
    {"lower", ChangeCase<false>},
    {"lstrip", Strip<true, false>},
    {"pop", Pop},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", Replace},
    {"rfind", Find<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split},
    {"splitlines", SplitLines},
    {"startswith", StartsWith<false>},
    {"strip", Strip<true, true>},
    {"title", Capitalize<true>},
    {"upper", ChangeCase<true>},
    {"values", View<DictView::kValues>},
};

}  // namespace

JinjaMethodFn FindJinjaMethod(std::string_view name) {
  for (const auto& [known, method] : kMethods) {
    if (known == name) return method;
  }
  return nullptr;
}

}  // namespace bitshard
