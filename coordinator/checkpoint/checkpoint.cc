// What kind of checkpoint a path names; the work is in hf_folder.cc and gguf_file.cc.
#include "coordinator/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/gguf_file.h"
#include "coordinator/checkpoint/hf_folder.h"
#include "coordinator/checkpoint/input_file.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

constexpr char kWanted[] = "give a Hugging Face model folder or a GGUF file";

// A folder without a config.json: perhaps it holds one GGUF model.
absl::StatusOr<Checkpoint> OpenFolderOfGguf(const fs::path& folder) {
  std::vector<std::string> models;  // whole files and first parts
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool is_later_part =
        absl::StrContains(name, "-of-") && !absl::StrContains(name, "-00001-of-");
    if (it->path().extension() == ".gguf" && !is_later_part) models.push_back(it->path().string());
  }
  if (error)
    return absl::PermissionDeniedError(absl::StrCat(folder.string(), ": ", error.message()));
  if (models.size() == 1) return OpenGguf(models[0]);
  if (models.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(), " has neither a config.json nor a GGUF file; ", kWanted));
  }
  std::sort(models.begin(), models.end());
  return absl::InvalidArgumentError(absl::StrCat(folder.string(), " holds ", models.size(),
                                                 " GGUF models; give one of them, for instance ",
                                                 models[0]));
}

absl::StatusOr<Checkpoint> OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".safetensors") {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " holds weights only; give its folder, which has the config.json and the tokenizer too"));
  }
  if (file.size() >= 4) {
    std::array<char, 4> magic;
    RETURN_IF_ERROR(file.ReadAt(0, magic.size(), magic.data()));
    if (magic == std::array{'G', 'G', 'U', 'F'}) return OpenGguf(path);
    const bool zip = magic == std::array{'P', 'K', '\3', '\4'},
               pickle = magic[0] == '\x80' && magic[1] <= 5;
    if (zip || pickle || extension == ".bin" || extension == ".pt" || extension == ".pth") {
      return absl::UnimplementedError(absl::StrCat(
          path,
          " looks like a pickle, which can run code and is never read; convert it to safetensors"));
    }
  }
  if (extension == ".gguf") {
    return absl::DataLossError(
        absl::StrCat(path, " does not begin with \"GGUF\"; is the download complete?"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a checkpoint; ", kWanted));
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).lexically_normal().string();
  if (path.empty() || error || FirstInvalidUtf8(absolute)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is not the path of a checkpoint; ", kWanted));
  }
  const fs::file_status status = fs::status(absolute, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(absolute, " does not exist; ", kWanted));
  }
  if (status.type() != fs::file_type::directory) return OpenFile(absolute);
  const fs::path folder = fs::canonical(absolute, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(absolute, ": ", error.message()));
  if (PathExists((folder / "config.json").string())) return OpenHfFolder(folder.string());
  return OpenFolderOfGguf(folder);
}

}  // namespace bitshard
