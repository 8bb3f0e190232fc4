#include "worker/memory_report.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "kernels/tensor/mapped_memory.h"

namespace bitshard {
namespace {

// The number of a line "Rss:     1032 kB", in bytes.
uint64_t Kilobytes(absl::string_view line) {
  uint64_t kib = 0;
  absl::ConsumeSuffix(&line, " kB");
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib) ? kib * 1024 : 0;
}

// The field `name` ("Rss:") of a file of such lines.
uint64_t FieldOf(const char* path, absl::string_view name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, name)) return Kilobytes(rest);
  }
  return 0;
}

// Resident bytes of every mapping, by its first address. One look at all of them: /proc/self/
// smaps_rollup would walk the page tables once more, and at another time.
std::map<uintptr_t, uint64_t> ResidentByAddress() {
  std::map<uintptr_t, uint64_t> resident;
  std::ifstream in("/proc/self/smaps");
  uintptr_t address = 0;
  for (std::string line; std::getline(in, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "Rss:")) {
      resident[address] = Kilobytes(rest);
      continue;
    }
    // "7f5a3c000000-7f5a3c021000 rw-p ...": fields begin with a capital letter, addresses do not.
    const size_t dash = line.find('-');
    const bool is_address =
        dash != std::string::npos && dash > 0 && line.find_first_not_of("0123456789abcdef") == dash;
    if (is_address) address = std::stoull(line.substr(0, dash), nullptr, 16);
  }
  return resident;
}

}  // namespace

internal::MemoryReport MeasureMemory() {
  internal::MemoryReport report;
  const std::map<uintptr_t, uint64_t> resident = ResidentByAddress();
  uint64_t all = 0;
  for (const auto& [address, bytes] : resident) all += bytes;
  uint64_t weights = 0, cache = 0, cache_resident = 0, workspace = 0, workspace_resident = 0;
  for (const MappedMemory& mapping : MappedMemories()) {
    internal::MappedPart& part = *report.add_mappings();
    part.set_part(MemoryPartName(mapping.part));
    part.set_address(mapping.address);
    part.set_bytes(mapping.bytes);
    const auto found = resident.find(mapping.address);
    const uint64_t here = found == resident.end() ? 0 : found->second;
    switch (mapping.part) {
      case MemoryPart::kWeights:
        weights += here;
        break;
      case MemoryPart::kKvCache:
        cache += mapping.bytes;
        cache_resident += here;
        break;
      case MemoryPart::kWorkspace:
        workspace += mapping.bytes;
        workspace_resident += here;
        break;
    }
  }
  report.set_weight_resident_bytes(weights);
  report.set_kv_cache_bytes(cache);
  report.set_kv_cache_resident_bytes(cache_resident);
  report.set_workspace_bytes(workspace);
  report.set_workspace_resident_bytes(workspace_resident);
  report.set_resident_bytes(all);
  report.set_peak_resident_bytes(FieldOf("/proc/self/status", "VmHWM:"));
  return report;
}

}  // namespace bitshard
