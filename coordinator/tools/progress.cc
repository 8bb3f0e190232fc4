#include "coordinator/tools/progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace bitshard {

namespace {
constexpr int kBarCells = 30;
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::Update(const std::string& label, uint64_t done, uint64_t total) {
  const absl::Time now = absl::Now();
  const bool complete = done >= total;
  const bool news = label != last_label_ || complete != last_complete_;
  const absl::Duration pause = terminal_ ? absl::Milliseconds(100) : absl::Seconds(5);
  if (!news && now - last_drawn_ < pause) return;
  if (!news && complete) return;
  last_label_ = label;
  last_complete_ = complete;
  last_drawn_ = now;
  const double share =
      total == 0 ? 1.0 : static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  const std::string amount =
      absl::StrFormat("%3.0f %%  %s / %s", share * 100, HumanBytes(done), HumanBytes(total));
  if (!terminal_) {
    std::fprintf(stderr, "%s %s\n", label.c_str(), amount.c_str());
    return;
  }
  const int full = static_cast<int>(share * kBarCells);
  const std::string bar = std::string(full, '=') + (full < kBarCells ? ">" : "") +
                          std::string(static_cast<size_t>(std::max(0, kBarCells - full - 1)), ' ');
  std::fprintf(stderr, "\r\033[K%s [%s] %s", label.c_str(), bar.c_str(), amount.c_str());
  std::fflush(stderr);
}

void ProgressBar::Phase(const std::string& label) {
  if (label == last_label_) return;
  last_label_ = label;
  last_drawn_ = absl::Now();
  std::fprintf(stderr, terminal_ ? "\r\033[K%s ..." : "%s ...\n", label.c_str());
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (terminal_ && !last_label_.empty()) std::fprintf(stderr, "\r\033[K");
  last_label_.clear();
}

std::string HumanBytes(uint64_t bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", bytes)
                   : absl::StrFormat("%.1f %s", value, units[unit]);
}

}  // namespace bitshard
