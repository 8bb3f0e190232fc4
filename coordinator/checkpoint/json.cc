#include "coordinator/checkpoint/json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr size_t kMaxDepth = 64;
// A checkpoint with a million tensors has about eight values each in its header.
constexpr size_t kMaxValues = 16'000'000;

// Builds the document while nlohmann's parser (iterative, hence no recursion on hostile input)
// calls it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }
  Json Take() { return std::move(root_); }

  bool null() override { return Put(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return Put(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(Json(value)) != nullptr;
  }
  bool string(string_t& value) override { return Put(Json(std::move(value))) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      return Fail(absl::StrCat("the key \"", name, "\" appears twice in one object"));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    return Fail(
        absl::StrCat("no valid JSON at byte ", position, " (near \"", token.substr(0, 40), "\")"));
  }

 private:
  bool Fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }

  Json* Put(Json value) {
    if (++values_ > kMaxValues) {
      Fail(absl::StrCat("more than ", kMaxValues, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent[key_];
    member = std::move(value);
    return &member;
  }

  // Pointers to open containers stay valid: only the innermost one grows.
  bool Open(Json container) {
    if (open_.size() == kMaxDepth) return Fail(absl::StrCat("nested deeper than ", kMaxDepth));
    Json* const place = Put(std::move(container));
    if (place == nullptr) return false;
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string error_;
  size_t values_ = 0;
};

// Keeps the keys of the object at one path.
class KeyRecorder final : public nlohmann::json_sax<Json> {
 public:
  explicit KeyRecorder(const std::vector<std::string>& path) : path_(path) {}
  std::vector<std::string> Take() { return std::move(keys_); }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool key(string_t& name) override {
    const bool is_here =
        open_.size() == path_.size() + 1 && std::equal(path_.begin(), path_.end(), open_.begin());
    if (is_here) keys_.push_back(name);
    open_.back() = std::move(name);
    return true;
  }

 private:
  bool Open() {
    open_.emplace_back();  // in an array it stays: no such key
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::vector<std::string>& path_;
  std::vector<std::optional<std::string>> open_;  // the key at which each open container is
  std::vector<std::string> keys_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& where) {
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder) || !builder.error().empty()) {
    return absl::DataLossError(absl::StrCat(where, ": ", builder.error()));
  }
  return builder.Take();
}

std::vector<std::string> KeysInFileOrder(std::string_view text,
                                         const std::vector<std::string>& path) {
  KeyRecorder recorder(path);
  Json::sax_parse(text.begin(), text.end(), &recorder);
  return recorder.Take();
}

const Json* JsonFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status JsonFields::Wrong(const char* key, const std::string& expected) const {
  std::string value = Find(key)->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (value.size() > 60) value = absl::StrCat(value.substr(0, 60), "...");
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": \"", key, "\" is ", value, ", expected ", expected));
}

absl::StatusOr<std::optional<uint64_t>> JsonFields::Unsigned(const char* key, uint64_t max) const {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned() || value->get<uint64_t>() > max) {
    return Wrong(key, absl::StrCat("a whole number from 0 to ", max));
  }
  return value->get<uint64_t>();
}

absl::StatusOr<uint64_t> JsonFields::RequiredUnsigned(const char* key, uint64_t min,
                                                      uint64_t max) const {
  ASSIGN_OR_RETURN(const std::optional<uint64_t> value, Unsigned(key, max));
  if (!value) return absl::InvalidArgumentError(absl::StrCat(where_, ": \"", key, "\" is missing"));
  if (*value < min) return Wrong(key, absl::StrCat("a whole number from ", min, " to ", max));
  return *value;
}

absl::StatusOr<std::optional<double>> JsonFields::Number(const char* key) const {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    return Wrong(key, "a finite number");
  return value->get<double>();
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const char* key) const {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(const char* key) const {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Wrong(key, "a string");
  return value->get<std::string>();
}

}  // namespace bitshard
