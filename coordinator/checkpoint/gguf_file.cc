#include "coordinator/checkpoint/gguf_file.h"

#include <filesystem>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "coordinator/checkpoint/gguf.h"
#include "coordinator/checkpoint/gguf_config.h"
#include "coordinator/checkpoint/gguf_names.h"
#include "coordinator/checkpoint/gguf_types.h"
#include "coordinator/checkpoint/input_file.h"
#include "coordinator/checkpoint/model_digest.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint64_t kMaxParts = 99999;

TensorInfo ToTensorInfo(const GgufTensor& tensor, uint32_t file) {
  const GgufType* const type = FindGgufType(tensor.type);
  CHECK(type != nullptr);
  TensorInfo info{.name = CanonicalGgufName(tensor.name),
                  .format = std::string(type->name),
                  .shape = {tensor.dims.rbegin(), tensor.dims.rend()},
                  .rows = 1,
                  .cols = tensor.dims[0],
                  .parts = {{.source_name = tensor.name,
                             .file = file,
                             .offset = tensor.offset,
                             .bytes = tensor.bytes}}};
  for (size_t d = 1; d < tensor.dims.size(); ++d)
    info.rows *= tensor.dims[d];  // the product has been checked
  return info;
}

absl::StatusOr<GgufHeader> IndexPart(const std::string& path, TensorIndex& index) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  ByteCursor cursor([&file](uint64_t offset, uint64_t count,
                            char* out) { return file.ReadAt(offset, count, out); },
                    file.size(), path);
  ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(cursor));
  const uint32_t file_index = index.AddFile({.path = path, .size_bytes = file.size()});
  for (const GgufTensor& tensor : header.tensors)
    RETURN_IF_ERROR(index.Add(ToTensorInfo(tensor, file_index)));
  return header;
}

std::string PartSuffix(uint64_t part, uint64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", part + 1, count);
}

absl::Status CheckPartNumbers(const GgufMetadata& metadata, uint64_t part, uint64_t count) {
  ASSIGN_OR_RETURN(const auto number, metadata.Unsigned("split.no", kMaxParts));
  ASSIGN_OR_RETURN(const auto parts, metadata.Unsigned("split.count", kMaxParts));
  if (number == part && parts == count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(metadata.where(), " says it is part ", number.value_or(0), " of ",
                   parts.value_or(0), " (counted from 0), expected part ", part, " of ", count));
}

// The other parts of a split model, whose first part has been indexed.
absl::Status IndexOtherParts(const std::string& path, const GgufMetadata& metadata,
                             TensorIndex& index) {
  ASSIGN_OR_RETURN(const auto count, metadata.Unsigned("split.count", kMaxParts));
  if (count.value_or(1) <= 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto number, metadata.Unsigned("split.no", kMaxParts));
  const std::string own_suffix = PartSuffix(number.value_or(0), *count);
  if (!absl::EndsWith(path, own_suffix)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a part of a split model and must keep its name *", own_suffix));
  }
  const std::string prefix = path.substr(0, path.size() - own_suffix.size());
  if (number.value_or(0) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is not the first part of a split model; give ", prefix, PartSuffix(0, *count)));
  }
  for (uint64_t part = 1; part < *count; ++part) {
    const std::string part_path = prefix + PartSuffix(part, *count);
    absl::StatusOr<GgufHeader> header = IndexPart(part_path, index);
    if (absl::IsNotFound(header.status())) {
      return absl::NotFoundError(
          absl::StrCat(part_path, " is missing: the model has ", *count, " parts"));
    }
    RETURN_IF_ERROR(header.status());
    RETURN_IF_ERROR(CheckPartNumbers(header->metadata, part, *count));
  }
  ASSIGN_OR_RETURN(const auto total, metadata.Unsigned("split.tensors.count", UINT32_MAX));
  if (!total || *total == index.tensors().size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " claims ", *total, " tensors in all parts, found ",
                                          index.tensors().size()));
}

// Short strings and numbers, for people.
void CopyMetadata(const GgufMetadata& metadata, TensorIndex& index) {
  constexpr size_t kMaxShownBytes = 200;
  for (const auto& [key, value] : metadata.values()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      if (text->size() <= kMaxShownBytes && !FirstInvalidUtf8(*text)) index.AddMetadata(key, *text);
    } else if (const auto* number = std::get_if<uint64_t>(&value)) {
      index.AddMetadata(key, absl::StrCat(*number));
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      index.AddMetadata(key, absl::StrCat(*integer));
    } else if (const auto* real = std::get_if<double>(&value)) {
      index.AddMetadata(key, absl::StrCat(*real));
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      index.AddMetadata(key, *flag ? "true" : "false");
    }
  }
}

std::string TokenText(const GgufVocab& vocab, const std::optional<int64_t>& id) {
  return id ? vocab.tokens[static_cast<size_t>(*id)] : std::string();
}

}  // namespace

absl::StatusOr<Checkpoint> OpenGguf(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.container = Checkpoint::Container::kGguf;
  ASSIGN_OR_RETURN(const GgufHeader header, IndexPart(path, checkpoint.index));
  const GgufMetadata& metadata = header.metadata;
  RETURN_IF_ERROR(IndexOtherParts(path, metadata, checkpoint.index));
  CopyMetadata(metadata, checkpoint.index);
  ASSIGN_OR_RETURN(checkpoint.config, GgufModelConfig(metadata, checkpoint.index));
  ASSIGN_OR_RETURN(GgufVocab vocab, ReadGgufVocab(metadata));
  checkpoint.eos_ids = GgufEndIds(vocab);
  checkpoint.bos_token = TokenText(vocab, vocab.bos_id);
  checkpoint.eos_token = TokenText(vocab, vocab.eos_id);
  checkpoint.tokenizer = std::move(vocab);
  ASSIGN_OR_RETURN(const auto chat_template, metadata.String("tokenizer.chat_template"));
  checkpoint.chat_template = chat_template.value_or("");
  ASSIGN_OR_RETURN(const auto name, metadata.String("general.name"));
  checkpoint.name = name && !name->empty() && !FirstInvalidUtf8(*name)
                        ? *name
                        : std::filesystem::path(path).stem().string();
  ASSIGN_OR_RETURN(std::string digest, ModelDigest(checkpoint.config, checkpoint.index));
  checkpoint.index.set_model_digest(std::move(digest));
  return checkpoint;
}

}  // namespace bitshard
