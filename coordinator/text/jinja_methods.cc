#include "coordinator/text/jinja_methods.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_lexer.h"
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
  return heap->NewString(std::string(StripSet(self.string(), set, kLeft, kRight)));
}

template <bool kEnd>
absl::StatusOr<Value> StartsWith(const Value& self, const Arguments& arguments, JinjaHeap*) {
  constexpr std::string_view kName = kEnd ? "endswith" : "startswith";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  RETURN_IF_ERROR(arguments.Check(kName, 1));
  ASSIGN_OR_RETURN(const std::string_view part, TextArgument(arguments, 0, kName));
  return Value::Bool(kEnd ? self.string().ends_with(part) : self.string().starts_with(part));
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
  RETURN_IF_ERROR(heap->ChargeBytes(text.size()));
  const auto put = [&](std::string_view part) -> absl::Status {
    RETURN_IF_ERROR(heap->ChargeBytes(2 * sizeof(Value)));
    parts.push_back(Value::String(std::string(part)));
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
  RETURN_IF_ERROR(arguments.Check("replace", 2));
  ASSIGN_OR_RETURN(const std::string_view from, TextArgument(arguments, 0, "replace"));
  ASSIGN_OR_RETURN(const std::string_view to, TextArgument(arguments, 1, "replace"));
  if (from.empty()) {
    return absl::InvalidArgumentError("'replace': the text to replace must not be empty");
  }
  std::string out;
  std::string_view rest = self.string();
  while (true) {
    const size_t at = rest.find(from);
    RETURN_IF_ERROR(heap->ChargeBytes((at == rest.npos ? rest.size() : at) + to.size()));
    out += rest.substr(0, at);
    if (at == rest.npos) return Value::String(std::move(out));
    out += to;
    rest.remove_prefix(at + from.size());
  }
}

template <bool kUpper>
absl::StatusOr<Value> ChangeCase(const Value& self, const Arguments& arguments, JinjaHeap* heap) {
  constexpr std::string_view kName = kUpper ? "upper" : "lower";
  if (!self.is_string()) return NoSuchMethod(self, kName);
  return FindJinjaFilter(kName)(self, arguments, heap);
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
    RETURN_IF_ERROR(heap->ChargeBytes(4 * sizeof(Value) + key.size()));
    if (kView == DictView::kValues) {
      out.push_back(value);
      continue;
    }
    Value name = Value::String(key);
    if (kView == DictView::kItems) {
      std::vector<Value> pair = {std::move(name), value};
      name = Value::List(heap->NewList(std::move(pair), /*is_tuple=*/true));
    }
    out.push_back(std::move(name));
  }
  return Value::List(heap->NewList(std::move(out)));
}

constexpr std::pair<std::string_view, JinjaMethodFn> kMethods[] = {
    {"endswith", StartsWith<true>},
    {"get", Get},
    {"items", View<DictView::kItems>},
    {"keys", View<DictView::kKeys>},
    {"lower", ChangeCase<false>},
    {"lstrip", Strip<true, false>},
    {"replace", Replace},
    {"rstrip", Strip<false, true>},
    {"split", Split},
    {"startswith", StartsWith<false>},
    {"strip", Strip<true, true>},
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
