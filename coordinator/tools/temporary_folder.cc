#include "coordinator/tools/temporary_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bitshard {
namespace {

constexpr absl::string_view kPrefix = "bitshard-";
constexpr absl::string_view kOwner = "/owner";

absl::Status Failed(absl::string_view what, absl::string_view path) {
  return absl::InternalError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno),
                                          "; set TMPDIR to a folder that can be written"));
}

std::string Parent() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : parent.string();
}

bool IsOurs(const std::string& folder) {
  struct stat found;
  return lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

// The owner's file goes last: until then whoever sweeps finds what a killed process has left.
void RemoveAll(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> others;
  for (std::filesystem::directory_iterator at(folder, ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    if (at->path().filename().string() != kOwner.substr(1)) others.push_back(at->path());
  }
  for (const std::filesystem::path& other : others) std::filesystem::remove_all(other, ignored);
  std::filesystem::remove_all(folder, ignored);
}

// Takes the folder away when its owner's process is gone; one without the file is left alone.
void SweepOne(const std::string& folder) {
  const int owner =
      open(absl::StrCat(folder, kOwner).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (owner < 0) return;
  if (flock(owner, LOCK_EX | LOCK_NB) == 0) RemoveAll(folder);
  close(owner);
}

void Sweep(const std::string& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(parent, error), end; !error && at != end;
       at.increment(error)) {
    if (absl::StartsWith(at->path().filename().string(), kPrefix) && IsOurs(at->path().string()))
      SweepOne(at->path().string());
  }
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make(absl::string_view purpose) {
  const std::string parent = Parent();
  Sweep(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, purpose, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return Failed("make a temporary folder", path);
  TemporaryFolder folder;
  folder.path_ = std::move(path);
  const absl::Status owned = folder.Own();
  if (!owned.ok()) return owned;
  return folder;
}

// Locked under another name first: whoever sweeps meanwhile finds no owner's file.
absl::Status TemporaryFolder::Own() {
  const std::string file = absl::StrCat(path_, kOwner), unlocked = file + ".new";
  owner_ = open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (owner_ < 0) return Failed("make", unlocked);
  if (flock(owner_, LOCK_EX | LOCK_NB) != 0) return Failed("lock", unlocked);
  if (std::rename(unlocked.c_str(), file.c_str()) != 0) return Failed("make", file);
  return absl::OkStatus();
}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  if (this != &other) {
    Remove();
    path_ = std::exchange(other.path_, {});
    owner_ = std::exchange(other.owner_, -1);
  }
  return *this;
}

void TemporaryFolder::Remove() {
  if (!path_.empty()) RemoveAll(path_);
  path_.clear();
  if (owner_ >= 0) close(owner_);
  owner_ = -1;
}

absl::Status WritePrivateFile(const std::string& path, absl::string_view content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return Failed("make", path);
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  const absl::Status written =
      done == content.size() ? absl::OkStatus() : Failed("write all of", path);
  close(file);
  return written;
}

}  // namespace bitshard
