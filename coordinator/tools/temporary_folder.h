// A folder of one process's own in TMPDIR or /tmp, "bitshard-PURPOSE-XXXXXX", gone with the object.
//
// What a process leaves that was killed the next one takes away: each folder holds a file "owner",
// locked (flock) as long as its process lives, in whatever container that is.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bitshard {

class TemporaryFolder {
 public:
  // Takes away those of this user whose owners are gone, then makes one, which no other user may
  // look into. `purpose`: letters.
  static absl::StatusOr<TemporaryFolder> Make(absl::string_view purpose);

  TemporaryFolder() = default;  // none
  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), owner_(std::exchange(other.owner_, -1)) {}
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  ~TemporaryFolder() { Remove(); }

  const std::string& path() const { return path_; }  // "": none

 private:
  absl::Status Own();
  void Remove();

  std::string path_;
  int owner_ = -1;  // the open, locked file
};

// A new file that no other user may read.
absl::Status WritePrivateFile(const std::string& path, absl::string_view content);

}  // namespace bitshard
