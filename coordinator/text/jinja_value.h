// The values of template programs, with Python's meaning: what is true, equal, less, and how they
// print.
//
// Lists and dicts are references, as in Python. They live in the JinjaHeap of one rendering and die
// with it, so programs may tie cycles without leaking; a JinjaValue must not outlive the heap.
// Strings are shared and immutable, and know which of their bytes are the caller's (jinja_text.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/jinja_text.h"

namespace bitshard {

struct JinjaList;
struct JinjaDict;
struct JinjaMacro;
struct JinjaStatement;  // jinja_ast.h

// Shared by all copies of a value: message contents are large and read often.
using JinjaString = std::shared_ptr<const JinjaText>;

// Functions that programs can call by name.
enum class JinjaFunction { kRaiseException, kNamespace, kRange, kDict, kStrftimeNow };

class JinjaValue {
 public:
  struct Undefined {
    std::shared_ptr<const std::string> name;  // what was looked up, for messages; may be null
  };
  struct None {};

  JinjaValue() : value_(Undefined{}) {}
  static JinjaValue MakeUndefined(std::string_view name);
  static JinjaValue MakeNone() { return JinjaValue(std::in_place_type<None>, None{}); }
  static JinjaValue Bool(bool v) { return JinjaValue(std::in_place_type<bool>, v); }
  static JinjaValue Int(int64_t v) { return JinjaValue(std::in_place_type<int64_t>, v); }
  static JinjaValue Float(double v) { return JinjaValue(std::in_place_type<double>, v); }
  static JinjaValue Text(JinjaText v) {
    return JinjaValue(std::in_place_type<JinjaString>,
                      std::make_shared<const JinjaText>(std::move(v)));
  }
  // The same text as another value's.
  static JinjaValue Shared(JinjaString v) {
    return JinjaValue(std::in_place_type<JinjaString>, std::move(v));
  }
  // The template's own text.
  static JinjaValue String(std::string v) { return Text(JinjaText(std::move(v))); }
  static JinjaValue List(JinjaList* v) { return JinjaValue(std::in_place_type<JinjaList*>, v); }
  static JinjaValue Dict(JinjaDict* v) { return JinjaValue(std::in_place_type<JinjaDict*>, v); }
  static JinjaValue Function(JinjaFunction v) {
    return JinjaValue(std::in_place_type<JinjaFunction>, v);
  }
  static JinjaValue Macro(const JinjaMacro* v) {
    return JinjaValue(std::in_place_type<const JinjaMacro*>, v);
  }

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<JinjaString>(value_); }
  bool is_list() const { return std::holds_alternative<JinjaList*>(value_); }
  bool is_dict() const { return std::holds_alternative<JinjaDict*>(value_); }
  bool is_function() const { return std::holds_alternative<JinjaFunction>(value_); }
  bool is_macro() const { return std::holds_alternative<const JinjaMacro*>(value_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }  // True + 1 == 2

  // REQUIRES: the kind.
  const JinjaText& text() const { return *std::get<JinjaString>(value_); }
  const JinjaString& shared_text() const { return std::get<JinjaString>(value_); }
  const std::string& string() const { return text().bytes(); }
  JinjaList& list() const { return *std::get<JinjaList*>(value_); }
  JinjaDict& dict() const { return *std::get<JinjaDict*>(value_); }
  JinjaFunction function() const { return std::get<JinjaFunction>(value_); }
  const JinjaMacro& macro() const { return *std::get<const JinjaMacro*>(value_); }
  // REQUIRES: is_number().
  double AsDouble() const;
  // The value of a bool or int; nullopt for everything else.
  std::optional<int64_t> AsInt() const;

  bool Truthy() const;
  // Python's name of the type, for messages: "str", "NoneType", ...
  std::string_view TypeName() const;
  // INVALID_ARGUMENT "'name' is undefined" for an undefined value.
  absl::Status CheckDefined() const;

 private:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, JinjaString, JinjaList*,
                               JinjaDict*, JinjaFunction, const JinjaMacro*>;
  template <typename T>
  JinjaValue(std::in_place_type_t<T> kind, T v) : value_(kind, std::move(v)) {}

  Variant value_;
};

struct JinjaList {
  std::vector<JinjaValue> items;
  bool is_tuple = false;
};

// Keys are strings; insertion order is kept.
struct JinjaDict {
  std::vector<std::pair<std::string, JinjaValue>> items;
  absl::flat_hash_map<std::string, size_t> index;
  bool is_namespace = false;  // the only dict whose members a program can set
  bool foreign_keys = false;  // the caller gave them, some at least

  const JinjaValue* Find(std::string_view key) const;
  void Set(std::string_view key, JinjaValue value);
  // REQUIRES: the key is there.
  void Erase(std::string_view key);
  // Memory that a new item takes, about.
  static uint64_t CostOf(std::string_view key) { return 200 + 2 * key.size(); }
  JinjaText KeyText(const std::string& key) const {
    return foreign_keys ? JinjaText::Foreign(key) : JinjaText(key);
  }
};

// A macro, or the body of a call block, where it was defined.
struct JinjaMacro {
  const JinjaStatement* statement = nullptr;
  // Variables of the call block's surroundings: a range of the interpreter's; empty for macros.
  size_t outer_begin = 0;
  size_t outer_end = 0;
};

// What one rendering may use up.
struct JinjaLimits {
  uint64_t steps = 1'000'000;
  // The output may have 16 MiB; what is made on the way to it, a few times that.
  uint64_t bytes = uint64_t{256} << 20;
};

// Owns the lists and dicts of one rendering and counts what the rendering uses up.
class JinjaHeap {
 public:
  explicit JinjaHeap(const JinjaLimits& limits = {}) : limits_(limits) {}

  JinjaList* NewList(std::vector<JinjaValue> items = {}, bool is_tuple = false);
  JinjaDict* NewDict();
  const JinjaMacro* NewMacro(const JinjaMacro& macro) { return &macros_.emplace_back(macro); }

  // Both are asked before the work, and are RESOURCE_EXHAUSTED when the rendering has had its
  // share. One step, and as many more as reading so many bytes is worth.
  absl::Status ChargeStep(uint64_t bytes_read = 0);
  // Memory for new strings and lists; never given back. Longer texts are made with a JinjaWriter.
  absl::Status ChargeBytes(uint64_t bytes);
  // Memory for so many new items of a list that are strings of their own, their bytes left out.
  absl::Status ChargeItems(uint64_t items);
  // A string that is there already, charged.
  absl::StatusOr<JinjaValue> NewText(JinjaText text);
  absl::StatusOr<JinjaValue> NewString(std::string own) {
    return NewText(JinjaText(std::move(own)));
  }
  // A part of a string, and a dict's key as a string.
  absl::StatusOr<JinjaValue> NewSlice(const JinjaText& text, size_t begin, size_t bytes);
  absl::StatusOr<JinjaValue> NewKey(const JinjaDict& dict, const std::string& key);

 private:
  const JinjaLimits limits_;
  std::deque<JinjaList> lists_;
  std::deque<JinjaDict> dicts_;
  std::deque<JinjaMacro> macros_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
};

// Python's ==; values of different kinds are unequal, numbers compare by value.
// INVALID_ARGUMENT when nested too deeply.
absl::StatusOr<bool> JinjaEquals(const JinjaValue& a, const JinjaValue& b, JinjaHeap* heap);

// What of a text may stand in an error: its begin, whole characters.
std::string JinjaShown(std::string_view text);

// repr() of a float: the shortest digits that read back the same.
std::string JinjaFloatRepr(double v);

// Python's a < b; INVALID_ARGUMENT for kinds without an order.
absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b, JinjaHeap* heap);

// str(value): what {{ value }} prints. Undefined prints as nothing. A string's own text is not
// copied.
absl::StatusOr<JinjaString> JinjaToText(const JinjaValue& value, JinjaHeap* heap);

}  // namespace bitshard
