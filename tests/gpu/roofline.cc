#include "tests/gpu/roofline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "kernels/base/status_macros.h"
#include "tests/gpu/timing.h"

namespace bitshard {

absl::StatusOr<RooflineLine> TimeLine(Device& device, DeviceStream& stream, RooflineLine line,
                                      int launches, const Ceilings& ceilings,
                                      const RooflineSize& size,
                                      const std::function<absl::Status()>& enqueue) {
  ASSIGN_OR_RETURN(const Timing timing,
                   TimeGraph(device, stream, launches, size.repetitions, enqueue));
  ASSIGN_OR_RETURN(const Timing again,
                   TimeGraph(device, stream, launches, size.repetitions, enqueue));
  const double copies = static_cast<double>(line.bytes) / ceilings.copy_bytes_per_s;
  const double products = line.flops / ceilings.matrix_flops_per_s();
  line.seconds = timing.seconds;
  line.again = again.seconds;
  line.spread = timing.spread;
  line.share = std::max(copies, products) / timing.seconds;
  line.by_copies = copies >= products;
  return line;
}

std::string RooflineHead() {
  return "what\tbytes\tus\tagain us\tGB/s\tTFLOP/s\tshare\tof\tbar\tspread";
}

std::string RooflineText(const RooflineLine& line) {
  return absl::StrFormat(
      "%s\t%d\t%.1f\t%.1f\t%.0f\t%.1f\t%.3f\t%s\t%s\t%.3f", line.what, line.bytes,
      line.seconds * 1e6, line.again * 1e6, static_cast<double>(line.bytes) / line.seconds / 1e9,
      line.flops / line.seconds / 1e12, line.share, line.by_copies ? "copies" : "products",
      line.bar == 0 ? ""
                    : absl::StrFormat("%.2f%s", line.bar, line.share < line.bar ? " BELOW" : ""),
      line.spread);
}

RooflineVerdict JudgeRoofline(absl::Span<const RooflineLine> lines) {
  int with_bar = 0;
  RooflineVerdict verdict;
  const RooflineLine* worst = nullptr;
  for (const RooflineLine& line : lines) {
    if (line.bar == 0) continue;
    ++with_bar;
    if (line.share < line.bar) ++verdict.below;
    if (worst == nullptr || line.share / line.bar < worst->share / worst->bar) worst = &line;
  }
  verdict.text = absl::StrCat(lines.size(), " lines, ", verdict.below, " of ", with_bar,
                              " with a bar are below it");
  if (worst != nullptr)
    absl::StrAppend(&verdict.text,
                    absl::StrFormat("; the worst, %.3f: %s", worst->share, worst->what));
  return verdict;
}

}  // namespace bitshard
