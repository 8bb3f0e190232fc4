// One rank's hold on the shared memory of its group: made, found, watched and removed here.
//
// Rank 0 prepares the segment without a name, locks its own byte, and only then gives it the name,
// which must be new: whoever finds the name finds a finished segment. Rank r holds a lock on byte r
// of the file as long as it lives; the kernel drops it with the last descriptor, so "is rank r
// alive" needs no process id and works across PID namespaces and between threads. A named segment
// whose byte 0 nobody holds was left by a crash: stale.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "worker/collective/shm_layout.h"

namespace bitshard {

class ShmSegment {
 public:
  // Rank 0. Removes a stale segment of that name; ALREADY_EXISTS when a live one has it,
  // RESOURCE_EXHAUSTED when /dev/shm is too small (all pages are reserved now: no SIGBUS later).
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(const std::string& id, int world);

  // Ranks 1.. . NOT_FOUND when there is no live segment of that name (yet), ALREADY_EXISTS when
  // another live rank `rank` holds it, FAILED_PRECONDITION when it is of another shape or another
  // user.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Attach(const std::string& id, int rank,
                                                            int world);

  // Letters, digits, '.', '_', '-'; 1..200 of them. INVALID_ARGUMENT otherwise.
  static absl::Status CheckId(const std::string& id);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  const ShmView& view() const { return view_; }

  // Whether rank `r` still has the segment open. Own rank: true.
  bool Alive(int r) const;

  // Removes the name, if it still means this segment.
  void Unlink();

 private:
  ShmSegment(int fd, std::string name, int rank) : fd_(fd), name_(std::move(name)), rank_(rank) {}
  absl::Status Map(int world);

  const int fd_;
  const std::string name_;  // as shm_open wants it, "/bitshard_..."
  const int rank_;
  uint8_t* base_ = nullptr;
  size_t bytes_ = 0;
  ShmView view_;
};

}  // namespace bitshard
