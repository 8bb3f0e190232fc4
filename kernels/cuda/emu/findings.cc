#include "kernels/cuda/emu/findings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unistd.h>

#include "kernels/cuda/emu/state.h"

// The linker's: where the program was loaded.
extern "C" const char __executable_start[];

namespace bitshard::emu {
namespace {

// One fault in a loop finds itself a million times.
constexpr size_t kMaxKept = 100;

std::mutex findings_lock;  // taken after LaunchLock()
std::vector<Finding> findings;
uint64_t errors = 0;

std::string WithoutParentheses(std::string kernel) {
  if (kernel.size() > 2 && kernel.front() == '(' && kernel.back() == ')')
    kernel = kernel.substr(1, kernel.size() - 2);
  return kernel;
}

std::string FileAndLine(const char* file, unsigned line) {
  const std::string path = file;
  const size_t slash = path.rfind('/');
  return (slash == std::string::npos ? path : path.substr(slash + 1)) + ":" + std::to_string(line);
}

// A header of ours that kernels inline.
bool IsLanguageLayer(const std::string& line) {
  const size_t colon = line.rfind(':');
  const std::string path = line.substr(0, colon);
  const auto in = [&path](const char* folder) { return path.find(folder) != std::string::npos; };
  const bool is_header = path.ends_with(".h") || path.ends_with(".cuh");
  return is_header && (in("kernels/cuda/emu/") || in("kernels/cuda/ptx/") || in("kernels/base/"));
}

// The lines that addr2line prints for an instruction: the innermost inlined function first.
std::vector<std::string> SourceLines(const void* pc) {
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) return {};
  program[length] = '\0';
  // A return address belongs to the instruction after the call. Programs that are not position
  // independent are linked at the address where they run.
  const bool fixed = reinterpret_cast<uintptr_t>(__executable_start) < (uintptr_t{1} << 32);
  const uintptr_t base = fixed ? 0 : reinterpret_cast<uintptr_t>(__executable_start);
  char command[4400];
  std::snprintf(command, sizeof(command), "addr2line -i -e '%s' 0x%llx 2>/dev/null", program,
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(pc) - base - 1));
  std::vector<std::string> lines;
  FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return {};
  char line[4096];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string text = line;
    text = text.substr(0, text.find_first_of(" \n"));  // "(discriminator 3)" follows
    lines.push_back(text);
  }
  pclose(pipe);
  return lines;
}

void Keep(FindingKind kind, const std::string& place, const std::string& text) {
  const std::lock_guard<std::mutex> lock(findings_lock);
  ++errors;
  const std::string kernel = WithoutParentheses(launch.kernel);
  for (Finding& known : findings) {
    if (known.kind != kind || known.place != place || known.kernel != kernel) continue;
    ++known.count;
    return;
  }
  if (findings.size() < kMaxKept) findings.push_back({kind, kernel, place, text, 1});
}

}  // namespace

std::string_view FindingName(FindingKind kind) {
  switch (kind) {
    case FindingKind::kDivergentBarrier:
      return "divergent barrier";
    case FindingKind::kDivergentCollective:
      return "divergent collective";
    case FindingKind::kWrongMask:
      return "wrong mask";
    case FindingKind::kInactiveLane:
      return "inactive lane";
    case FindingKind::kDeadlock:
      return "deadlock";
    case FindingKind::kAsyncNotWaited:
      return "copy not waited for";
    case FindingKind::kSharedLimit:
      return "too much shared memory";
    case FindingKind::kBadArgument:
      return "bad argument";
    case FindingKind::kTrap:
      return "trap";
    case FindingKind::kBadCopy:
      return "bad copy";
    case FindingKind::kOutOfBounds:
      return "out of bounds";
    case FindingKind::kFreedMemory:
      return "freed memory";
    case FindingKind::kMisaligned:
      return "misaligned";
    case FindingKind::kUninitialized:
      return "uninitialized";
    case FindingKind::kInFlight:
      return "copy in flight";
    case FindingKind::kRaceShared:
      return "race in shared memory";
    case FindingKind::kRaceGlobal:
      return "race in global memory";
    case FindingKind::kEarlyAccess:
      return "early access";
  }
  return "unknown";
}

std::string PlaceOf(const Where& where) {
  return where.line() == 0 ? "the host" : FileAndLine(where.file_name(), where.line());
}

std::string PlaceOf(const void* pc) {
  static std::map<const void*, std::string>* const known =
      new std::map<const void*, std::string>;  // under LaunchLock(), as all callers are
  std::string& place = (*known)[pc];
  if (!place.empty()) return place;
  const std::vector<std::string> lines = SourceLines(pc);
  const auto own = std::find_if_not(lines.begin(), lines.end(), IsLanguageLayer);
  if (own != lines.end() && own->find(':') != std::string::npos && (*own)[0] != '?') {
    const size_t colon = own->rfind(':');
    place = FileAndLine(own->substr(0, colon).c_str(),
                        static_cast<unsigned>(std::atoi(own->c_str() + colon + 1)));
  } else {
    char text[64];
    std::snprintf(text, sizeof(text), "instruction %p (no addr2line, or no -g1)", pc);
    place = text;
  }
  return place;
}

void Report(FindingKind kind, const Where& where, const std::string& text) {
  Keep(kind, PlaceOf(where), text);
}

void ReportAt(FindingKind kind, const void* pc, const std::string& text) {
  Keep(kind, PlaceOf(pc), text);
}

std::vector<Finding> Findings() {
  const std::lock_guard<std::mutex> lock(findings_lock);
  return findings;
}

uint64_t Errors() {
  const std::lock_guard<std::mutex> lock(findings_lock);
  return errors;
}

void ResetFindings() {
  const std::lock_guard<std::mutex> lock(findings_lock);
  findings.clear();
  errors = 0;
}

std::string FindingsText() {
  std::string text;
  for (const Finding& finding : Findings()) {
    text += std::string(FindingName(finding.kind)) + " in " + finding.kernel + " at " +
            finding.place + ": " + finding.text +
            (finding.count > 1 ? " (" + std::to_string(finding.count) + " times)" : "") + "\n";
  }
  return text;
}

}  // namespace bitshard::emu
