#include "coordinator/grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/json.h"

namespace bitshard {
namespace {

// Say nothing about values.
constexpr std::string_view kAnnotations[] = {
    "$comment", "$schema",     "$id",        "$anchor",  "$vocabulary", "$defs",   "definitions",
    "title",    "description", "deprecated", "readOnly", "writeOnly",   "default", "examples"};
constexpr std::string_view kNeverKept[] = {
    "not",          "if",           "then",        "else",        "dependentRequired",
    "dependencies", "contains",     "minContains", "maxContains", "dependentSchemas",
    "$dynamicRef",  "$recursiveRef"};
// One of them decides alone.
constexpr std::string_view kDeciding[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// Without a type they would bind only some values, and the rest would be free.
constexpr std::string_view kNeedType[] = {
    "minLength",        "maxLength",        "pattern",           "format",
    "minimum",          "maximum",          "required",          "minProperties",
    "exclusiveMinimum", "exclusiveMaximum", "minItems",          "maxProperties",
    "maxItems",         "multipleOf",       "patternProperties", "propertyNames"};

template <size_t N>
bool IsOneOf(std::string_view key, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), key) != std::end(names);
}

bool HasType(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

class Checker {
 public:
  // False at the first thing that is wrong.
  bool Schema(const Json& schema, const std::string& at) {
    if (schema.is_boolean()) return true;
    if (!schema.is_object()) return Wrong(at, "must be an object or a boolean");
    for (const auto& [key, value] : schema.items()) {
      if (IsOneOf(key, kNeverKept) || (key == "uniqueItems" && value != false))
        return Wrong(at, absl::StrCat("\"", key, "\" is not supported"));
    }
    return Together(schema, at) && Object(schema, at) && SubSchemas(schema, at);
  }

  const std::string& error() const { return error_; }

 private:
  bool Wrong(const std::string& at, const std::string& why) {
    error_ = absl::StrCat(at.empty() ? "#" : "#" + absl::CHexEscape(at.substr(0, 200)), ": ", why);
    return false;
  }

  // Keywords that are kept alone, but not beside each other.
  bool Together(const Json& schema, const std::string& at) {
    std::string deciding;
    for (const auto& [key, value] : schema.items()) {
      if (IsOneOf(key, kDeciding)) deciding = key;
    }
    if (deciding.empty()) return Typed(schema, at);
    const bool literal = deciding == "const" || deciding == "enum";
    for (const auto& [key, value] : schema.items()) {
      if (key == deciding || IsOneOf(key, kAnnotations) || (literal && key == "type")) continue;
      if (!IsOneOf(key, kDeciding) && !IsOneOf(key, kNeedType) && !IsApplied(key)) continue;
      return Wrong(at, absl::StrCat("\"", key, "\" beside \"", deciding,
                                    "\" is not supported; put it inside"));
    }
    if (deciding == "allOf" && (!schema["allOf"].is_array() || schema["allOf"].size() != 1))
      return Wrong(at, "\"allOf\" is supported with one schema only");
    return !literal || !schema.contains("type") || LiteralsHaveType(schema, deciding, at);
  }

  bool Typed(const Json& schema, const std::string& at) {
    if (schema.contains("pattern") && schema.contains("format"))
      return Wrong(at, "\"pattern\" beside \"format\" is not supported");
    const bool typed = schema.contains("type") || schema.contains("properties") ||
                       schema.contains("additionalProperties") || schema.contains("items") ||
                       schema.contains("prefixItems");
    for (const auto& [key, value] : schema.items()) {
      if (!typed && IsOneOf(key, kNeedType))
        return Wrong(at, absl::StrCat("\"", key, "\" needs a \"type\" beside it"));
    }
    return true;
  }

  bool LiteralsHaveType(const Json& schema, const std::string& keyword, const std::string& at) {
    const Json& type = schema["type"];
    const Json literals = keyword == "const" ? Json::array({schema["const"]}) : schema["enum"];
    for (const Json& literal : literals) {
      bool fits = type.is_string() && HasType(literal, type.get<std::string>());
      if (type.is_array()) {
        for (const Json& one : type)
          fits = fits || (one.is_string() && HasType(literal, one.get<std::string>()));
      }
      if (!fits)
        return Wrong(at, absl::StrCat("a value of \"", keyword, "\" is not of the \"type\""));
    }
    return true;
  }

  bool Object(const Json& schema, const std::string& at) {
    const auto required = schema.find("required");
    if (required == schema.end()) return true;
    if (!required->is_array()) return Wrong(at, "\"required\" must be a list of names");
    const auto properties = schema.find("properties");
    for (const Json& name : *required) {
      if (!name.is_string()) return Wrong(at, "\"required\" must be a list of names");
      if (properties != schema.end() && properties->is_object() &&
          properties->contains(name.get<std::string>()))
        continue;
      return Wrong(at,
                   absl::StrCat("\"required\" names \"", absl::CHexEscape(name.get<std::string>()),
                                "\", which \"properties\" does not have"));
    }
    return true;
  }

  static bool IsApplied(std::string_view key) {
    return key == "type" || key == "properties" || key == "additionalProperties" ||
           key == "items" || key == "prefixItems" || key == "unevaluatedProperties" ||
           key == "unevaluatedItems";
  }

  bool SubSchemas(const Json& schema, const std::string& at) {
    for (const auto& [key, value] : schema.items()) {
      const std::string place = absl::StrCat(at, "/", key);
      if (key == "properties" || key == "patternProperties" || key == "$defs" ||
          key == "definitions") {
        if (!value.is_object()) return Wrong(place, "must be an object");
        for (const auto& [name, member] : value.items())
          if (!Schema(member, absl::StrCat(place, "/", name))) return false;
      } else if (key == "anyOf" || key == "oneOf" || key == "allOf" || key == "prefixItems") {
        if (!value.is_array() || value.empty()) return Wrong(place, "must be a list of schemas");
        for (size_t i = 0; i < value.size(); ++i)
          if (!Schema(value[i], absl::StrCat(place, "/", i))) return false;
      } else if (key == "items" || key == "additionalProperties" || key == "propertyNames" ||
                 key == "unevaluatedProperties" || key == "unevaluatedItems") {
        if (!Schema(value, place)) return false;
      }
    }
    return true;
  }

  std::string error_;
};

}  // namespace

std::optional<std::string> WrongInSchema(std::string_view text) {
  const absl::StatusOr<Json> schema = ParseJson(text, "the schema");
  if (!schema.ok()) return std::string(schema.status().message());
  Checker checker;
  if (checker.Schema(*schema, "")) return std::nullopt;
  return checker.error();
}

}  // namespace bitshard
