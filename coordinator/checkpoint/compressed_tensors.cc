#include "coordinator/checkpoint/compressed_tensors.h"

#include <array>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/checkpoint/input_file.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

constexpr std::string_view kCodes = ".weight_packed";
// What belongs to a module's packed weight and is no tensor of its own in the index that is made.
constexpr std::array<std::string_view, 5> kPartSuffixes = {
    kCodes, ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"};

std::string ShapeText(const TensorInfo& tensor) {
  return absl::StrCat(tensor.format, " [", absl::StrJoin(tensor.shape, ", "), "]");
}

uint64_t BytesOf(const std::string& dtype) {
  if (dtype == "i8" || dtype == "u8" || dtype == "bool") return 1;
  if (dtype == "i16" || dtype == "u16" || dtype == "f16" || dtype == "bf16") return 2;
  if (dtype == "i32" || dtype == "u32" || dtype == "f32") return 4;
  return dtype == "i64" || dtype == "u64" || dtype == "f64" ? 8 : 0;
}

// Makes one weight of a module's parts.
class Assembler {
 public:
  Assembler(const CompressedTensorsConfig& config, const TensorIndex& stored)
      : config_(config), stored_(stored) {}

  absl::StatusOr<TensorInfo> Assemble(const std::string& module, const TensorInfo& codes) {
    const std::string where = absl::StrCat(stored_.PathOf(codes), ": tensor '", codes.name, "'");
    ASSIGN_OR_RETURN(const CompressedTensorsConfig::Match match, config_.Find(module));
    if (codes.format == "u8") {
      return absl::UnimplementedError(
          absl::StrCat(where,
                       " holds 4- or 6-bit floats (nvfp4, mxfp4, mxfp6), which are not supported; "
                       "supported are packed integers"));
    }
    if (match.scheme == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " is packed, but ", config_.where(),
          match.target.empty() ? " names no group for its module"
                               : absl::StrCat(" leaves its module out ('", match.target, "')")));
    }
    const CompressedTensorsScheme& scheme = *match.scheme;
    const auto wrong = [&](const TensorInfo& tensor, const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat(stored_.PathOf(tensor), ": tensor '", tensor.name, "' is ",
                       ShapeText(tensor), ", expected ", what..., " (", scheme.bits, " bits, ",
                       scheme.group_columns == 0 ? "by channel"
                                                 : absl::StrCat("groups of ", scheme.group_columns),
                       ", group '", scheme.group, "' of the config)"));
    };
    if (const TensorInfo* const plain = stored_.Find(module + ".weight")) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": the module has a plain '", plain->name, "' too"));
    }
    if (stored_.Find(module + ".weight_g_idx") != nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(where,
                       ": groups of any columns (weight_g_idx, activation order 'group') are "
                       "not supported; supported are groups of neighbouring columns"));
    }
    const TensorInfo* const scale = stored_.Find(module + ".weight_scale");
    if (scale == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(where, " has no weight_scale"));
    if (codes.format != "i32" || codes.shape.size() != 2) {
      if (codes.shape.size() == 3)
        return absl::UnimplementedError(
            absl::StrCat(where, ": stacks of experts are not supported"));
      return wrong(codes, "i32 with two dimensions");
    }
    const uint64_t rows = codes.rows;
    ASSIGN_OR_RETURN(const uint64_t cols, Columns(module, codes, *scale, scheme));
    const uint64_t group = scheme.group_columns;
    if (cols == 0 || (group != 0 && cols % group != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": ", cols, " columns are no whole groups of ", group));
    }
    const uint64_t groups = group == 0 ? 1 : cols / group;
    if (BytesOf(scale->format) == 0 ||
        (scale->format != "f32" && scale->format != "f16" && scale->format != "bf16") ||
        scale->shape != std::vector<uint64_t>{rows, groups}) {
      return wrong(*scale, "f32, f16 or bf16 [", rows, ", ", groups, "]");
    }
    ASSIGN_OR_RETURN(const bool dense, IsDense(codes, cols, scheme.bits, wrong));
    const TensorInfo* const zeros = stored_.Find(module + ".weight_zero_point");
    if (zeros == nullptr && !scheme.symmetric) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has no weight_zero_point, but its group is asymmetric"));
    }
    std::string words = scheme.symmetric ? " sym" : " asym";
    if (zeros != nullptr) {
      const std::vector<uint64_t> packed = {Words(rows, scheme.bits, dense), groups};
      const bool is_packed = zeros->format == "i32" && zeros->shape == packed;
      const uint64_t bytes = BytesOf(zeros->format);
      if (scheme.symmetric && is_packed) {
        words += " stray=packed";
      } else if (scheme.symmetric && bytes > 0 &&
                 zeros->shape == std::vector<uint64_t>{rows, groups}) {
        absl::StrAppend(&words, " stray=", bytes);
      } else if (!is_packed) {
        return wrong(*zeros, "i32 [", packed[0], ", ", groups, "]");
      }
    }
    if (32 % scheme.bits != 0) words += dense ? " dense" : " padded";
    TensorInfo weight{.name = module + ".weight",
                      .format = absl::StrCat("ct_int", scheme.bits, " ",
                                             group == 0 ? "channel" : absl::StrCat("group=", group),
                                             " scale=", scale->format, words),
                      .shape = {rows, cols},
                      .rows = rows,
                      .cols = cols,
                      .parts = {codes.parts[0], scale->parts[0]}};
    if (zeros != nullptr) weight.parts.push_back(zeros->parts[0]);
    return weight;
  }

 private:
  static uint64_t Words(uint64_t codes, int bits, bool dense) {
    const uint64_t b = static_cast<uint64_t>(bits);
    return dense ? CeilDiv(codes * b, 32) : CeilDiv(codes, 32 / b);
  }

  // The packing by the width of the codes' tensor: writers say nothing else about it.
  template <typename WrongFn>
  static absl::StatusOr<bool> IsDense(const TensorInfo& codes, uint64_t cols, int bits,
                                      const WrongFn& wrong) {
    const uint64_t dense = Words(cols, bits, true), padded = Words(cols, bits, false);
    if (codes.cols != dense && codes.cols != padded) {
      return wrong(codes, "a width of ", dense,
                   dense == padded ? "" : absl::StrCat(" (dense) or ", padded, " (padded)"),
                   " words for ", cols, " columns");
    }
    if (dense == padded && 32 % bits != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", codes.name, "': ", cols, " columns of ", bits, " bits take ", dense,
          " words in both packings of compressed-tensors (dense and padded), so "
          "that the codes are ambiguous"));
    }
    return codes.cols == dense;
  }

  // weight_shape says it; without one it follows from whole groups, or from whole words.
  absl::StatusOr<uint64_t> Columns(const std::string& module, const TensorInfo& codes,
                                   const TensorInfo& scale, const CompressedTensorsScheme& scheme) {
    const TensorInfo* const shape = stored_.Find(module + ".weight_shape");
    constexpr uint64_t kMaxSide = uint64_t{1} << 31;
    if (shape == nullptr) {
      if (scheme.group_columns != 0) {
        return CheckedMul(scale.cols, scheme.group_columns).value_or(0);
      }
      if (32 % scheme.bits == 0) return CheckedMul(codes.cols, 32 / scheme.bits).value_or(0);
      return absl::InvalidArgumentError(
          absl::StrCat(stored_.PathOf(codes), ": tensor '", codes.name, "' of ", scheme.bits,
                       " bits by channel needs a weight_shape, which is missing"));
    }
    if (shape->format != "i64" || shape->shape != std::vector<uint64_t>{2}) {
      return absl::InvalidArgumentError(absl::StrCat(stored_.PathOf(*shape), ": tensor '",
                                                     shape->name, "' is ", ShapeText(*shape),
                                                     ", expected i64 [2]"));
    }
    int64_t sides[2];
    RETURN_IF_ERROR(ReadPart(shape->parts[0], sides, sizeof(sides)));
    if (sides[0] < 0 || static_cast<uint64_t>(sides[0]) != codes.rows || sides[1] <= 0 ||
        static_cast<uint64_t>(sides[1]) >= kMaxSide) {
      return absl::InvalidArgumentError(
          absl::StrCat(stored_.PathOf(*shape), ": tensor '", shape->name, "' says [", sides[0],
                       ", ", sides[1], "], but '", codes.name, "' is ", ShapeText(codes)));
    }
    return static_cast<uint64_t>(sides[1]);
  }

  absl::Status ReadPart(const TensorPart& part, void* out, size_t bytes) {
    files_.resize(stored_.files().size());
    std::unique_ptr<InputFile>& file = files_[part.file];
    if (file == nullptr) {
      ASSIGN_OR_RETURN(InputFile opened, InputFile::Open(stored_.files()[part.file].path));
      file = std::make_unique<InputFile>(std::move(opened));
    }
    return file->ReadAt(part.offset, bytes, static_cast<char*>(out));
  }

  const CompressedTensorsConfig& config_;
  const TensorIndex& stored_;
  std::vector<std::unique_ptr<InputFile>> files_;  // opened when first read
};

// The module of a tensor with this suffix; empty for others.
std::string ModuleOf(const std::string& name, std::string_view suffix) {
  if (name.size() <= suffix.size() || name.substr(name.size() - suffix.size()) != suffix) return "";
  return name.substr(0, name.size() - suffix.size());
}

// Whether a tensor was used up in the weight of its module. A part without codes is refused.
absl::StatusOr<bool> IsPartOfWeight(const TensorIndex& stored, const TensorInfo& tensor) {
  for (const std::string_view suffix : kPartSuffixes) {
    const std::string module = ModuleOf(tensor.name, suffix);
    if (module.empty()) continue;
    if (stored.Find(module + std::string(kCodes)) != nullptr) return true;
    return absl::UnimplementedError(absl::StrCat(
        stored.PathOf(tensor), ": tensor '", tensor.name, "' without '", module,
        std::string(kCodes), "' belongs to a quantized form that is not supported; supported are ",
        kSupportedQuantization));
  }
  return false;
}

}  // namespace

absl::StatusOr<TensorIndex> AssembleCompressedTensors(const CompressedTensorsConfig& config,
                                                      const TensorIndex& stored) {
  TensorIndex index;
  for (const CheckpointFile& file : stored.files()) index.AddFile(file);
  for (const auto& [key, value] : stored.metadata()) index.AddMetadata(key, value);
  const bool maybe_fake = config.status() == "initialized" || config.status() == "calibration" ||
                          config.status() == "frozen";
  Assembler assembler(config, stored);
  std::set<std::string> warned;  // targets whose modules are plain after all
  for (const TensorInfo& tensor : stored.tensors()) {
    if (const std::string module = ModuleOf(tensor.name, kCodes); !module.empty()) {
      ASSIGN_OR_RETURN(TensorInfo weight, assembler.Assemble(module, tensor));
      RETURN_IF_ERROR(index.Add(std::move(weight)));
      continue;
    }
    ASSIGN_OR_RETURN(const bool is_part, IsPartOfWeight(stored, tensor));
    if (is_part) continue;
    const std::string module = ModuleOf(tensor.name, ".weight");
    if (!module.empty() && tensor.shape.size() == 2) {
      ASSIGN_OR_RETURN(const auto match, config.Find(module));
      if (match.scheme != nullptr && maybe_fake) {
        return absl::UnimplementedError(
            absl::StrCat(stored.PathOf(tensor), ": tensor '", tensor.name, "' is still ",
                         ShapeText(tensor), ": quantization_status '", config.status(),
                         "' means that nothing is packed yet; save the model compressed"));
      }
      if (match.scheme != nullptr && warned.insert(match.target).second) {
        LogWarning("checkpoint: weight loaded unquantized tensor={} target={} reason=not_packed",
                   tensor.name, match.target);
      }
    }
    RETURN_IF_ERROR(index.Add(tensor));
  }
  return index;
}

}  // namespace bitshard
