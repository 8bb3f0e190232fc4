// How many CPUs this process may use, and which: AvailableCpus, AffinityCpus, CpusByCore and
// CpusOfRank of thread_pool.h.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/thread_pool.h"

namespace bitshard {
namespace {

// CPUs that a cgroup v2 file "cpu.max" grants ("max 100000" or "150000 100000"); 0 = no limit or no
// file.
double QuotaV2(const std::string& path) {
  std::ifstream file(path);
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::atof(quota.c_str()) / period;
}

double QuotaV1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.cfs_quota_us") >> quota) || quota <= 0) return 0;
  if (!(std::ifstream(folder + "/cpu.cfs_period_us") >> period) || period <= 0) return 0;
  return quota / period;
}

// The smallest quota on the way from this process's cgroup to the root; 0 = none.
double CgroupQuota() {
  double best = 0;
  const auto take = [&best](double quota) {
    if (quota > 0 && (best == 0 || quota < best)) best = quota;
  };
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    std::string path = line.substr(second + 1);
    while (true) {
      take(v2 ? QuotaV2(root + path + "/cpu.max") : QuotaV1(root + path));
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  // Inside a container the path of /proc/self/cgroup may not exist under its own mount; the mount's
  // root is its group.
  take(QuotaV2("/sys/fs/cgroup/cpu.max"));
  return best;
}

}  // namespace

std::vector<int> AffinityCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int AvailableCpus() {
  int count = std::max<int>(1, static_cast<int>(AffinityCpus().size()));
  const double quota = CgroupQuota();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return count;
}

std::vector<int> CpusByCore() {
  std::vector<int> first, others;
  std::vector<std::string> seen;  // "0,4" or "0-1": the threads of a core
  for (const int cpu : AffinityCpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    const bool known = static_cast<bool>(file >> siblings);
    if (known && std::find(seen.begin(), seen.end(), siblings) != seen.end()) {
      others.push_back(cpu);
      continue;
    }
    first.push_back(cpu);
    if (known) seen.push_back(siblings);
  }
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

std::vector<int> CpusOfRank(int local_rank, int local_ranks, int threads) {
  const std::vector<int> cpus = CpusByCore();
  const int64_t all = static_cast<int64_t>(cpus.size());
  if (local_rank < 0 || local_rank >= local_ranks || threads < 1 ||
      int64_t{local_ranks} * threads != all || AvailableCpus() < all) {
    return {};
  }
  return {cpus.begin() + int64_t{local_rank} * threads,
          cpus.begin() + (int64_t{local_rank} + 1) * threads};
}

}  // namespace bitshard
