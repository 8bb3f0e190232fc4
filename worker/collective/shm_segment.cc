#include "worker/collective/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <new>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"

namespace bitshard {
namespace {

constexpr char kDirectory[] = "/dev/shm";  // where Linux' shm_open looks

std::string ShmName(const std::string& id) { return absl::StrCat("/bitshard_", id); }

std::string ErrnoText() { return strerror(errno); }

struct flock ByteLock(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

// Locks of the open file description, not of the process: threads that opened the file themselves
// are different ranks.
bool TryLock(int fd, int rank) {
  struct flock lock = ByteLock(rank);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool Locked(int fd, int rank) {
  struct flock lock = ByteLock(rank);
  // A failing query must not look like a death.
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool SameFile(int fd, const std::string& name) {
  const int other = shm_open(name.c_str(), O_RDONLY, 0);
  if (other < 0) return false;
  struct stat a, b;
  const bool same =
      fstat(fd, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  close(other);
  return same;
}

absl::Status Reserve(int fd, size_t bytes) {
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error == 0) return absl::OkStatus();
  struct statvfs fs {};
  const uint64_t free_bytes =
      statvfs(kDirectory, &fs) == 0 ? uint64_t{fs.f_bavail} * fs.f_frsize : 0;
  return absl::ResourceExhaustedError(
      absl::StrCat("shm: cannot reserve ", bytes >> 10, " KiB in ", kDirectory, " (",
                   free_bytes >> 10, " KiB free): ", strerror(error),
                   "; give it more room (docker: --shm-size=256m; Kubernetes: an emptyDir of "
                   "medium Memory mounted "
                   "at /dev/shm)"));
}

// A segment is ours only if this user made it for nobody else.
absl::Status CheckOwner(int fd, const std::string& name) {
  struct stat st;
  if (fstat(fd, &st) != 0) {
    return absl::InternalError(absl::StrCat("shm: fstat of ", name, ": ", ErrnoText()));
  }
  if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shm: ", kDirectory, name, " belongs to user ", st.st_uid, " with mode ",
        absl::Hex(st.st_mode), "; we are user ", geteuid(),
        " and take only private segments of our own. Run all workers of a host as one user"));
  }
  return absl::OkStatus();
}

void Announce(const ShmView& view, int rank) {
  ShmRankLine& line = view.line(rank);
  line.pid.store(getpid(), std::memory_order_relaxed);
  for (int cpu : AffinityCpus()) {
    if (cpu < 1024)
      line.cpus[cpu / 64].fetch_or(uint64_t{1} << (cpu % 64), std::memory_order_relaxed);
  }
}

}  // namespace

absl::Status ShmSegment::CheckId(const std::string& id) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  bool ok = !id.empty() && id.size() <= 200;
  for (char c : id) ok = ok && fits(c);
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("shm: a communicator id has 1..200 letters, digits, '.', '_' or '-'; got ",
                   id.size(), " bytes"));
}

absl::Status ShmSegment::Map(int world) {
  bytes_ = ShmView::Bytes(world);
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shm: mmap of ", bytes_ >> 10, " KiB of ", name_, ": ", ErrnoText()));
  }
  base_ = static_cast<uint8_t*>(base);
  view_ = ShmView(base_, world);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(const std::string& id, int world) {
  RETURN_IF_ERROR(CheckId(id));
  const std::string name = ShmName(id);
  const int fd = open(kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("shm: cannot make a file in ", kDirectory, ": ", ErrnoText(),
                     "; workers of one host need a writable tmpfs there"));
  }
  std::unique_ptr<ShmSegment> segment(new ShmSegment(fd, name, 0));
  RETURN_IF_ERROR(Reserve(fd, ShmView::Bytes(world)));
  RETURN_IF_ERROR(segment->Map(world));
  ShmHeader& header = segment->view_.header();
  header.magic = kShmMagic;
  header.world = static_cast<uint32_t>(world);
  Announce(segment->view_, 0);
  if (!TryLock(fd, 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("shm: cannot lock a file in ", kDirectory, ": ", ErrnoText(),
                     "; this kernel has no open-file-description locks there"));
  }
  const std::string from = absl::StrCat("/proc/self/fd/", fd), to = absl::StrCat(kDirectory, name);
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) == 0)
      return segment;
    if (errno != EEXIST) {
      return absl::FailedPreconditionError(
          absl::StrCat("shm: cannot name ", to, ": ", ErrnoText()));
    }
    const int old = shm_open(name.c_str(), O_RDWR, 0);
    if (old < 0) continue;  // gone meanwhile, or not ours: the next round says which
    const absl::Status owner = CheckOwner(old, name);
    const bool stale = owner.ok() && !Locked(old, 0) && SameFile(old, name);
    close(old);
    RETURN_IF_ERROR(owner);
    if (!stale) break;
    shm_unlink(name.c_str());
  }
  return absl::AlreadyExistsError(
      absl::StrCat("shm: ", to,
                   " is in use by a live group (or another user); every epoch "
                   "needs a communicator id of its own"));
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Attach(const std::string& id, int rank,
                                                               int world) {
  RETURN_IF_ERROR(CheckId(id));
  const std::string name = ShmName(id);
  const int fd = shm_open(name.c_str(), O_RDWR, 0);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("shm: no segment ", name));
    return absl::FailedPreconditionError(
        absl::StrCat("shm: cannot open ", kDirectory, name, ": ", ErrnoText()));
  }
  std::unique_ptr<ShmSegment> segment(new ShmSegment(fd, name, rank));
  RETURN_IF_ERROR(CheckOwner(fd, name));
  if (!Locked(fd, 0))
    return absl::NotFoundError(absl::StrCat("shm: segment ", name, " was left by a dead rank 0"));
  uint32_t head[2] = {};  // magic, world: ShmHeader's first words
  struct stat st;
  if (pread(fd, head, sizeof(head), 0) != sizeof(head) || fstat(fd, &st) != 0 ||
      head[0] != kShmMagic) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shm: ", name, " is not a segment of this version; do all workers run the same build?"));
  }
  if (head[1] != static_cast<uint32_t>(world) ||
      static_cast<uint64_t>(st.st_size) != ShmView::Bytes(world)) {
    return absl::FailedPreconditionError(absl::StrCat("shm: rank 0 made ", name, " for ", head[1],
                                                      " ranks, rank ", rank, " was told ", world));
  }
  if (!TryLock(fd, rank)) {
    return absl::AlreadyExistsError(
        absl::StrCat("shm: a live rank ", rank, " is attached to ", name, " already"));
  }
  RETURN_IF_ERROR(segment->Map(world));
  Announce(segment->view_, rank);
  return segment;
}

ShmSegment::~ShmSegment() {
  if (base_ != nullptr) munmap(base_, bytes_);
  close(fd_);
}

bool ShmSegment::Alive(int r) const { return r == rank_ || Locked(fd_, r); }

void ShmSegment::Unlink() {
  if (SameFile(fd_, name_)) shm_unlink(name_.c_str());
}

}  // namespace bitshard
