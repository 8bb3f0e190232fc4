// Qwen3-Coder, Qwen3.5: <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function>
// </tool_call>. Values are plain text; the tool's schema says which are JSON.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "coordinator/text/call_reader.h"

namespace bitshard {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr size_t kMaxName = 256;

// What the tools' schemas say of parameters. Each schema is parsed once an answer: it may be long,
// and a model may write many parameters.
class Schemas {
 public:
  // The answer has ended in the middle of a value, so what is read again of it has no complete one.
  // Without that every call that is begun in it would be read to the end, for each of them anew.
  bool no_value_ends = false;

  explicit Schemas(std::shared_ptr<const std::vector<ChatTool>> tools) : tools_(std::move(tools)) {}

  // "string", "integer", ...; several when it allows several, none when it says nothing.
  std::vector<std::string> TypesOf(const std::string& function, const std::string& parameter) {
    std::vector<std::string> types;
    const nlohmann::json& properties = PropertiesOf(function);
    if (!properties.is_object()) return types;
    if (!properties.contains(parameter)) return {"string"};
    const nlohmann::json& property = properties[parameter];
    if (!property.is_object() || !property.contains("type")) return types;
    const nlohmann::json& type = property["type"];
    if (type.is_string()) types.push_back(type.get<std::string>());
    if (!type.is_array()) return types;
    for (const nlohmann::json& one : type) {
      if (one.is_string()) types.push_back(one.get<std::string>());
    }
    return types;
  }

 private:
  // Null where there are none.
  const nlohmann::json& PropertiesOf(const std::string& function) {
    const auto [entry, is_new] = parsed_.try_emplace(function);
    if (!is_new) return entry->second;
    for (const ChatTool& tool : *tools_) {
      if (tool.name != function) continue;
      nlohmann::json schema =
          nlohmann::json::parse(tool.parameters_json, nullptr, /*allow_exceptions=*/false);
      if (!schema.is_object() || !schema.contains("properties")) break;
      entry->second = std::move(schema["properties"]);
      if (!entry->second.is_object()) entry->second = nlohmann::json::object();
      break;
    }
    return entry->second;
  }

  const std::shared_ptr<const std::vector<ChatTool>> tools_;
  std::map<std::string, nlohmann::json> parsed_;  // by function that the model named
};

bool Fits(const nlohmann::json& value, const std::string& type) {
  return (type == "integer" && value.is_number_integer()) ||
         (type == "number" && value.is_number()) || (type == "boolean" && value.is_boolean()) ||
         (type == "null" && value.is_null()) || (type == "object" && value.is_object()) ||
         (type == "array" && value.is_array());
}

// The value as JSON: as it stands when it is JSON of an allowed type, else as a string.
std::string ToJson(std::string_view text, const std::vector<std::string>& types) {
  const nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                                     /*allow_exceptions=*/false);
  bool json = types.empty() && !value.is_discarded() && !value.is_string();
  for (const std::string& type : types) json |= !value.is_discarded() && Fits(value, type);
  if (json) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    const size_t end = text.find_last_not_of(" \t\r\n");
    return std::string(text.substr(begin, end + 1 - begin));
  }
  // Models write True and False as Python does.
  for (const std::string& type : types) {
    if (type == "boolean" && (text == "True" || text == "False")) {
      return text == "True" ? "true" : "false";
    }
  }
  return EncodeJsonString(text);
}

class Reader final : public CallReader {
 public:
  Reader(std::shared_ptr<Schemas> schemas, bool in_function)
      : schemas_(std::move(schemas)),
        at_(in_function ? At::kName : At::kFunction),
        tagged_(!in_function) {}

  State Push(char c, OutputPieces* out) override {
    unread_.push_back(c);
    switch (at_) {
      case At::kFunction:
        return Tag(c, {kFunction}) < 0 ? tag_state_ : Next(At::kName);
      case At::kName:
      case At::kKey:
        return PushName(c, out);
      case At::kInside:
        switch (Tag(c, {kParameter, kFunctionEnd})) {
          case 0:
            return Next(At::kKey);
          case 1:
            out->Arguments("}", unread_);
            unread_.clear();
            out->EndCall("");
            at_ = At::kClose;
            return tagged_ ? State::kMore : State::kDone;
          default:
            return tag_state_;
        }
      case At::kValue:
        value_.push_back(c);
        if (value_.ends_with(kParameterEnd)) EndValue(out);
        return State::kMore;
      case At::kClose:
        return Tag(c, {kClose}) < 0 ? tag_state_ : State::kDone;
    }
    return State::kBad;
  }

  State Finish(OutputPieces*) override {
    schemas_->no_value_ends |= at_ == At::kValue;
    return at_ == At::kClose ? State::kDone : State::kBad;
  }

 private:
  enum class At { kFunction, kName, kInside, kKey, kValue, kClose };

  State Next(At at) {
    at_ = at;
    return State::kMore;
  }

  // White space and then one of `tags`: which one is complete now, or -1 and tag_state_.
  int Tag(char c, const std::vector<std::string_view>& tags) {
    tag_state_ = State::kMore;
    if (tag_.empty() && IsJsonSpace(c)) return -1;
    tag_.push_back(c);
    tag_state_ = State::kBad;
    for (size_t i = 0; i < tags.size(); ++i) {
      if (!tags[i].starts_with(tag_)) continue;
      tag_state_ = State::kMore;
      if (tags[i].size() > tag_.size()) continue;
      tag_.clear();
      return static_cast<int>(i);
    }
    return -1;
  }

  State PushName(char c, OutputPieces* out) {
    if (c != '>') {
      word_.push_back(c);
      const bool bad = word_.size() > kMaxName || c == '<' || c == '\n';
      return bad ? State::kBad : State::kMore;
    }
    if (word_.empty()) return State::kBad;
    if (at_ == At::kKey) {
      key_ = std::exchange(word_, "");
      value_.clear();
      return schemas_->no_value_ends ? State::kBad : Next(At::kValue);
    }
    name_ = std::exchange(word_, "");
    out->BeginCall(name_, "", unread_);
    out->Arguments("{", "");
    unread_.clear();
    return Next(At::kInside);
  }

  void EndValue(OutputPieces* out) {
    std::string_view text = value_;
    text.remove_suffix(kParameterEnd.size());
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    std::string member = first_ ? "" : ", ";
    member += EncodeJsonString(key_);
    member += ": ";
    member += ToJson(text, schemas_->TypesOf(name_, key_));
    first_ = false;
    out->Arguments(member, unread_);
    unread_.clear();
    at_ = At::kInside;
  }

  const std::shared_ptr<Schemas> schemas_;  // as long as the answer
  At at_;
  const bool tagged_;  // <tool_call> came first
  std::string tag_;
  State tag_state_ = State::kMore;
  std::string word_;
  std::string name_;
  std::string key_;
  std::string value_;
  bool first_ = true;
};

class Parser final : public SectionParser {
 public:
  explicit Parser(std::shared_ptr<const std::vector<ChatTool>> tools)
      : SectionParser({{kOpen}, {kFunction}}, /*json_at_start=*/false),
        schemas_(std::make_shared<Schemas>(std::move(tools))) {}

 private:
  std::unique_ptr<CallReader> Open(std::string_view marker) override {
    return std::make_unique<Reader>(schemas_, marker == kFunction);
  }
  const std::shared_ptr<Schemas> schemas_;  // of the request's tools
};

const RegisterOutputDialect kRegistered(
    {.name = "qwen3_coder",
     .part = OutputDialect::Part::kToolCalls,
     .fit =
         [](std::string_view source) {
           return source.find(kOpen) != source.npos && source.find(kFunction) != source.npos ? 20
                                                                                             : 0;
         },
     .markers = {kOpen, kClose},
     .make = [](const OutputParserOptions& options, std::unique_ptr<OutputParser>)
         -> std::unique_ptr<OutputParser> { return std::make_unique<Parser>(options.tools); }});

}  // namespace
}  // namespace bitshard
