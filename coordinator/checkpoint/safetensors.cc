#include "coordinator/checkpoint/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/input_file.h"
#include "coordinator/checkpoint/json.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

// Limits of the reference reader (header) and ours (the rest).
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxDimensions = 8;
constexpr uint64_t kMaxIndexBytes = 256ull << 20;

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";
constexpr char kSuffix[] = ".safetensors";

std::optional<uint64_t> BitsOfDtype(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"U16", 16},    {"I16", 16},
      {"F16", 16},    {"BF16", 16},   {"U32", 32}, {"I32", 32},    {"F32", 32},
      {"U64", 64},    {"I64", 64},    {"F64", 64}, {"C64", 64},    {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto found = kBits.find(dtype);
  if (found == kBits.end()) return std::nullopt;
  return found->second;
}

// A list of unsigned whole numbers; nullopt when it is anything else.
std::optional<std::vector<uint64_t>> UnsignedList(const Json& value, size_t max_size) {
  if (!value.is_array() || value.size() > max_size) return std::nullopt;
  std::vector<uint64_t> list;
  for (const Json& item : value) {
    if (!item.is_number_unsigned()) return std::nullopt;
    list.push_back(item.get<uint64_t>());
  }
  return list;
}

absl::StatusOr<SafetensorsHeader::Entry> ParseEntry(const std::string& name, const Json& value,
                                                    uint64_t data_bytes, const std::string& where) {
  const std::string here = absl::StrCat(where, ": tensor '", name, "'");
  if (!value.is_object())
    return absl::DataLossError(absl::StrCat(here, " is not described by an object"));
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string() || shape == value.end() ||
      offsets == value.end()) {
    return absl::DataLossError(absl::StrCat(here, " lacks dtype, shape or data_offsets"));
  }
  const std::string dtype_name = dtype->get<std::string>();
  const std::optional<uint64_t> bits = BitsOfDtype(dtype_name);
  if (!bits) {
    return absl::UnimplementedError(
        absl::StrCat(here, " has dtype '", dtype_name,
                     "', which is not known here (fnuz types are not supported)"));
  }
  const auto dimensions = UnsignedList(*shape, kMaxDimensions);
  if (!dimensions) {
    return absl::DataLossError(
        absl::StrCat(here, ": shape is not a list of at most 8 unsigned whole numbers"));
  }
  const auto range = UnsignedList(*offsets, 2);
  if (!range || range->size() != 2) {
    return absl::DataLossError(
        absl::StrCat(here, ": data_offsets are not two unsigned whole numbers"));
  }
  SafetensorsHeader::Entry entry{.name = name,
                                 .format = absl::AsciiStrToLower(dtype_name),
                                 .shape = *dimensions,
                                 .begin = (*range)[0],
                                 .end = (*range)[1]};
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat(here, ": data_offsets ", entry.begin, " to ", entry.end,
                                            " do not lie in the file's ", data_bytes,
                                            " data bytes; is the download complete?"));
  }
  std::optional<uint64_t> total_bits = bits;
  for (uint64_t dimension : entry.shape) {
    if (total_bits) total_bits = CheckedMul(*total_bits, dimension);
  }
  const std::optional<uint64_t> stored_bits = CheckedMul(entry.end - entry.begin, 8);
  if (!total_bits || !stored_bits || *total_bits != *stored_bits) {
    return absl::DataLossError(absl::StrCat(here, ": dtype and shape need another size than the ",
                                            entry.end - entry.begin, " bytes it has"));
  }
  return entry;
}

absl::Status ParseMetadata(const Json& value, const std::string& where, SafetensorsHeader& header) {
  if (!value.is_object())
    return absl::DataLossError(absl::StrCat(where, ": __metadata__ is not an object"));
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return absl::DataLossError(absl::StrCat(where, ": __metadata__ '", key, "' is not a string"));
    }
    header.metadata[key] = text.get<std::string>();
  }
  return absl::OkStatus();
}

// The tensors must tile the data section: no hole, no overlap, nothing after the last one.
absl::Status CheckTiling(const SafetensorsHeader& header, uint64_t data_bytes,
                         const std::string& where) {
  uint64_t end = 0;
  for (const SafetensorsHeader::Entry& entry : header.entries) {
    if (entry.begin != end) {
      return absl::DataLossError(absl::StrCat(where, ": tensor '", entry.name,
                                              "' begins at data byte ", entry.begin,
                                              " but the one before it ends at ", end));
    }
    end = entry.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(where, ": the tensors end at data byte ", end,
                                          " but the file has ", data_bytes,
                                          " data bytes; is the download complete?"));
}

TensorInfo ToTensorInfo(const SafetensorsHeader::Entry& entry, uint32_t file,
                        uint64_t data_offset) {
  TensorInfo info{.name = entry.name,
                  .format = entry.format,
                  .shape = entry.shape,
                  .rows = 1,
                  .cols = entry.shape.empty() ? 1 : entry.shape.back(),
                  .parts = {{.source_name = entry.name,
                             .file = file,
                             .offset = data_offset + entry.begin,
                             .bytes = entry.end - entry.begin}}};
  // No overflow: the product with cols has been checked, unless a dimension is 0; then nothing is
  // stored anyway.
  for (size_t i = 0; i + 1 < entry.shape.size(); ++i) {
    info.rows = CheckedMul(info.rows, entry.shape[i]).value_or(0);
  }
  return info;
}

// Adds one file's tensors: all of them, or only those in `wanted`, which must all be there.
absl::Status IndexFile(const std::string& path, const std::set<std::string>* wanted,
                       TensorIndex& index) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() < 8) {
    return absl::DataLossError(
        absl::StrCat(path, " has only ", file.size(), " bytes: not a safetensors file"));
  }
  char length_bytes[8];
  RETURN_IF_ERROR(file.ReadAt(0, 8, length_bytes));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(length_bytes[i]);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - 8) {
    return absl::DataLossError(absl::StrCat(
        path, ": header claims ", header_bytes, " bytes but the file has ", file.size(), " (and ",
        kMaxHeaderBytes, " are allowed); is it a complete safetensors file?"));
  }
  const uint64_t data_offset = 8 + header_bytes;
  ASSIGN_OR_RETURN(const std::string json, file.ReadAt(8, header_bytes));
  ASSIGN_OR_RETURN(const SafetensorsHeader header,
                   ParseSafetensorsHeader(json, file.size() - data_offset, path));

  const uint32_t file_index = index.AddFile({.path = path, .size_bytes = file.size()});
  size_t found = 0, ignored = 0;
  for (const SafetensorsHeader::Entry& entry : header.entries) {
    if (wanted != nullptr && !wanted->contains(entry.name)) {
      ++ignored;
      continue;
    }
    ++found;
    RETURN_IF_ERROR(index.Add(ToTensorInfo(entry, file_index, data_offset)));
  }
  for (const auto& [key, value] : header.metadata) index.AddMetadata(key, value);
  if (ignored > 0)
    LogWarning("checkpoint: tensors ignored file={} count={} reason=not_in_index", path, ignored);
  if (wanted == nullptr || found == wanted->size()) return absl::OkStatus();
  for (const std::string& name : *wanted) {
    if (index.Find(name) != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(kIndexName, " says that tensor '", name,
                                                   "' is in ", path, ", but it is not there"));
  }
  return absl::OkStatus();
}

// Links are followed (hub caches and mounts are full of them), but no name leads out of the folder
// by itself.
bool IsPlainFileName(const std::string& name) {
  return absl::EndsWith(name, kSuffix) &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos &&
         !absl::StrContains(name, "..");
}

absl::Status IndexShards(const fs::path& folder, TensorIndex& index) {
  const std::string where = (folder / kIndexName).string();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(where, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  const Json* const map = json.is_object() ? JsonFields(json, where).Find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has no weight_map"));
  }
  if (map->size() > kMaxTensors)
    return absl::InvalidArgumentError(absl::StrCat(where, " names too many tensors"));
  std::map<std::string, std::set<std::string>> tensors_of_file;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": tensor '", tensor, "' is mapped to ",
                       file.dump(-1, ' ', true, Json::error_handler_t::replace),
                       ", which is not the plain name of a .safetensors file in the model folder"));
    }
    tensors_of_file[file.get<std::string>()].insert(tensor);
  }
  for (const auto& [file, tensors] : tensors_of_file) {
    const absl::Status status = IndexFile((folder / file).string(), &tensors, index);
    if (absl::IsNotFound(status)) {
      return absl::NotFoundError(absl::StrCat(status.message(), "; ", kIndexName, " names it, and ",
                                              tensors_of_file.size(),
                                              " files in all: is the download complete?"));
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsFilesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kSuffix) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes,
                                                         const std::string& where) {
  const size_t first = json.find_first_not_of(' ');
  if (first == std::string_view::npos || json[first] != '{') {
    return absl::DataLossError(
        absl::StrCat(where, ": the header is not a JSON object: not a safetensors file"));
  }
  ASSIGN_OR_RETURN(const Json root, ParseJson(json, where));
  if (root.size() > kMaxTensors) {
    return absl::DataLossError(
        absl::StrCat(where, ": ", root.size(), " tensors, more than ", kMaxTensors));
  }
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(ParseMetadata(value, where, header));
      continue;
    }
    ASSIGN_OR_RETURN(SafetensorsHeader::Entry entry, ParseEntry(name, value, data_bytes, where));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RETURN_IF_ERROR(CheckTiling(header, data_bytes, where));
  return header;
}

absl::Status IndexSafetensorsFolder(const std::string& folder_path, TensorIndex& index) {
  const fs::path folder(folder_path);
  if (PathExists((folder / kIndexName).string())) return IndexShards(folder, index);
  std::vector<std::string> names = SafetensorsFilesIn(folder);
  if (std::find(names.begin(), names.end(), kSingleName) != names.end()) names = {kSingleName};
  if (names.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder_path, " has a config.json but no *.safetensors weights"));
  }
  for (const std::string& name : names) {
    RETURN_IF_ERROR(IndexFile((folder / name).string(), nullptr, index));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
