// The standard process_ series, out of /proc: the Prometheus library leaves them to us.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/base/metric_page.h"

namespace bitshard {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OpenDescriptors() {
  std::error_code error;
  double open = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++open;
  }
  return std::max(0., open - 1);  // less the one that reads the folder
}

// Fields 3 and on of /proc/self/stat, from index 0. The name in field 2 may hold blanks, so they
// are counted from its closing bracket.
std::vector<std::string> StatFields() {
  std::ifstream in("/proc/self/stat");
  const std::string stat((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t bracket = stat.rfind(')');
  std::istringstream rest(bracket == std::string::npos ? "" : stat.substr(bracket + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

double BootTime() {
  std::ifstream in("/proc/stat");
  std::string key;
  double boot = 0;
  while (in >> key && !(key == "btime" && in >> boot)) {
  }
  return boot;
}

double StartTime(const std::vector<std::string>& stat) {
  constexpr size_t kStartTicks = 22 - 3;  // in ticks since boot
  const double boot = BootTime();
  if (stat.size() <= kStartTicks || boot <= 0) return 0;
  return boot + std::strtod(stat[kStartTicks].c_str(), nullptr) /
                    static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

std::vector<MetricDef> ProcessMetricTable() {
  const auto def = [](const char* name, MetricType type, const char* unit, const char* help,
                      const char* when) {
    MetricDef out;
    out.name = name;
    out.type = type;
    out.unit = unit;
    out.help = help;
    out.when = when;
    return out;
  };
  return {
      def("process_cpu_seconds_total", MetricType::kCounter, "seconds",
          "Processor time of this process, all threads.", "At a scrape, from getrusage."),
      def("process_start_time_seconds", MetricType::kGauge, "seconds",
          "When this process started, since the epoch.",
          "At a scrape, from /proc/self/stat and the boot time of /proc/stat."),
      def("process_resident_memory_bytes", MetricType::kGauge, "bytes", "Memory in use.",
          "At a scrape, from /proc/self/statm."),
      def("process_virtual_memory_bytes", MetricType::kGauge, "bytes", "Address space.",
          "At a scrape, from /proc/self/statm."),
      def("process_open_fds", MetricType::kGauge, "descriptors", "Open file descriptors.",
          "At a scrape, from /proc/self/fd."),
      def("process_max_fds", MetricType::kGauge, "descriptors",
          "File descriptors that may be open.", "At a scrape, from getrlimit."),
      def("process_threads", MetricType::kGauge, "threads", "Threads of this process.",
          "At a scrape, from /proc/self/stat."),
  };
}

void SetProcessMetrics(MetricPage& page) {
  page.Value("process_cpu_seconds_total")->Set(CpuSeconds());
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  statm >> pages >> resident;
  const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  page.Value("process_virtual_memory_bytes")->Set(pages * page_bytes);
  page.Value("process_resident_memory_bytes")->Set(resident * page_bytes);
  page.Value("process_open_fds")->Set(OpenDescriptors());
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    page.Value("process_max_fds")->Set(static_cast<double>(limit.rlim_cur));
  const std::vector<std::string> stat = StatFields();
  constexpr size_t kThreads = 20 - 3;
  if (stat.size() > kThreads)
    page.Value("process_threads")->Set(std::strtod(stat[kThreads].c_str(), nullptr));
  page.Value("process_start_time_seconds")->Set(StartTime(stat));
}

}  // namespace bitshard
