#include "coordinator/text/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_writer.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr size_t kMaxDepth = 100;

std::string Escaped(char32_t value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  const auto unit = [&](char32_t u) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out.push_back(kHex[u >> shift & 15]);
  };
  if (value <= 0xFFFF) {
    unit(value);
  } else {
    unit(0xD800 + ((value - 0x10000) >> 10));
    unit(0xDC00 + ((value - 0x10000) & 0x3FF));
  }
  return out;
}

class Writer {
 public:
  Writer(const JinjaJsonFormat& format, JinjaHeap* heap, JinjaWriter* out)
      : format_(format), heap_(*heap), out_(*out) {}

  absl::Status Write(const JinjaValue& value, size_t depth) {
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(
          Concat("'tojson': a value is nested deeper than ", kMaxDepth, " or contains itself"));
    }
    RETURN_IF_ERROR(heap_.ChargeStep(value.is_string() ? value.string().size() : 0));
    if (value.is_none()) return out_.Append("null");
    if (value.is_bool()) return out_.Append(value.Truthy() ? "true" : "false");
    if (value.is_int()) return out_.Append(std::to_string(*value.AsInt()));
    if (value.is_float()) {
      const double number = value.AsDouble();
      return out_.Append(std::isnan(number)   ? std::string("NaN")
                         : std::isinf(number) ? std::string(number < 0 ? "-Infinity" : "Infinity")
                                              : JinjaFloatRepr(number));
    }
    if (value.is_string()) return String(value.text());
    if (value.is_list()) {
      const std::vector<JinjaValue>& items = value.list().items;
      return Container('[', ']', items.size(), depth,
                       [&](size_t i) { return Write(items[i], depth + 1); });
    }
    if (value.is_dict() && !value.dict().is_namespace) return Dict(value.dict(), depth);
    return absl::InvalidArgumentError(
        Concat("Object of type ", value.TypeName(), " is not JSON serializable"));
  }

 private:
  absl::Status Dict(const JinjaDict& dict, size_t depth) {
    RETURN_IF_ERROR(heap_.ChargeBytes(dict.items.size() * sizeof(void*)));
    std::vector<const std::pair<std::string, JinjaValue>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (format_.sort_keys) {
      std::sort(items.begin(), items.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    return Container('{', '}', items.size(), depth, [&](size_t i) -> absl::Status {
      RETURN_IF_ERROR(heap_.ChargeStep(items[i]->first.size()));
      ASSIGN_OR_RETURN(const JinjaValue key, heap_.NewKey(dict, items[i]->first));
      RETURN_IF_ERROR(String(key.text()));
      RETURN_IF_ERROR(out_.Append(format_.key_separator));
      return Write(items[i]->second, depth + 1);
    });
  }

  template <typename WriteItem>
  absl::Status Container(char open, char close, size_t size, size_t depth, WriteItem item) {
    RETURN_IF_ERROR(out_.Append(std::string_view(&open, 1)));
    for (size_t i = 0; i < size; ++i) {
      if (i > 0) RETURN_IF_ERROR(out_.Append(format_.item_separator));
      RETURN_IF_ERROR(NewLine(depth + 1));
      RETURN_IF_ERROR(item(i));
    }
    if (size > 0) RETURN_IF_ERROR(NewLine(depth));
    return out_.Append(std::string_view(&close, 1));
  }

  absl::Status NewLine(size_t depth) {
    if (!format_.indent.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(out_.Append("\n"));
    for (size_t i = 0; i < depth; ++i) RETURN_IF_ERROR(out_.Append(*format_.indent));
    return absl::OkStatus();
  }

  absl::Status String(const JinjaText& text) {
    const std::string& bytes = text.bytes();
    RETURN_IF_ERROR(out_.Append("\""));
    size_t plain = 0;  // everything before it is out
    for (size_t at = 0; at < bytes.size();) {
      const CodePoint c = CodePointAt(bytes, at);
      constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
      constexpr std::string_view kTo = "\"\\nrtfb";
      std::string escape;
      if (const size_t i = c.bytes == 1 ? kFrom.find(bytes[at]) : kFrom.npos; i != kFrom.npos) {
        escape = {'\\', kTo[i]};
      } else if (c.value < 0x20 || (format_.ensure_ascii && c.value > 0x7E)) {
        escape = Escaped(c.value);
      }
      if (!escape.empty()) {
        RETURN_IF_ERROR(out_.Append(text, plain, at - plain));
        RETURN_IF_ERROR(out_.AppendInPlaceOf(text, at, escape));
        plain = at + c.bytes;
      }
      at += c.bytes;
    }
    RETURN_IF_ERROR(out_.Append(text, plain, bytes.size() - plain));
    return out_.Append("\"");
  }

  const JinjaJsonFormat& format_;
  JinjaHeap& heap_;
  JinjaWriter& out_;
};

// Builds values while nlohmann's parser, which does not recurse, calls it.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(bool own, JinjaHeap* heap) : own_(own), heap_(*heap) {}

  const absl::Status& status() const { return status_; }
  JinjaValue Take() { return std::move(root_); }

  bool null() override { return Put(JinjaValue::MakeNone()); }
  bool boolean(bool value) override { return Put(JinjaValue::Bool(value)); }
  bool number_integer(number_integer_t value) override { return Put(JinjaValue::Int(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return Put(value <= INT64_MAX ? JinjaValue::Int(static_cast<int64_t>(value))
                                  : JinjaValue::Float(static_cast<double>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(JinjaValue::Float(value));
  }
  bool string(string_t& value) override {
    JinjaText text = own_ ? JinjaText(std::move(value)) : JinjaText::Foreign(std::move(value));
    absl::StatusOr<JinjaValue> made = heap_.NewText(std::move(text));
    return made.ok() ? Put(*std::move(made)) : Fail(made.status());
  }
  bool binary(binary_t&) override { return Fail(absl::InvalidArgumentError("binary data")); }
  bool start_object(size_t) override {
    JinjaDict* dict = heap_.NewDict();
    dict->foreign_keys = !own_;
    return Open(JinjaValue::Dict(dict));
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(JinjaValue::List(heap_.NewList())); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::InvalidArgumentError(Concat("no valid JSON at byte ", position, " (near \"",
                                                  std::string_view(token).substr(0, 40), "\")")));
  }

 private:
  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }

  bool Put(JinjaValue value) {
    const bool is_member = !open_.empty() && open_.back().is_dict();
    const absl::Status charged =
        heap_.ChargeBytes(is_member ? JinjaDict::CostOf(keys_.back()) : 4 * sizeof(JinjaValue));
    if (!charged.ok()) return Fail(charged);
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_list()) {
      open_.back().list().items.push_back(std::move(value));
    } else {
      open_.back().dict().Set(keys_.back(), std::move(value));
    }
    return true;
  }

  bool Open(JinjaValue container) {
    if (open_.size() == kMaxDepth) {
      return Fail(absl::InvalidArgumentError(Concat("nested deeper than ", kMaxDepth)));
    }
    if (!Put(container)) return false;
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const bool own_;
  JinjaHeap& heap_;
  absl::Status status_;
  JinjaValue root_;
  std::vector<JinjaValue> open_;
  std::vector<std::string> keys_;  // the last one of each open container
};

}  // namespace

absl::Status JinjaToJson(const JinjaValue& value, const JinjaJsonFormat& format, JinjaHeap* heap,
                         JinjaWriter* out) {
  RETURN_IF_ERROR(value.CheckDefined());
  return Writer(format, heap, out).Write(value, 0);
}

absl::StatusOr<JinjaValue> JinjaFromJson(std::string_view text, bool own, JinjaHeap* heap) {
  Reader reader(own, heap);
  const bool read = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  RETURN_IF_ERROR(reader.status());
  if (!read) return absl::InvalidArgumentError("no valid JSON");
  return reader.Take();
}

}  // namespace bitshard
