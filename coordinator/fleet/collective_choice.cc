#include "coordinator/fleet/collective_choice.h"

#include <algorithm>

namespace bitshard {
namespace {

bool Can(const internal::Register& worker, const char* collective) {
  const auto& names = worker.collectives();
  if (names.empty()) return std::string("shm") == collective;
  return std::find(names.begin(), names.end(), collective) != names.end();
}

bool AllCan(const std::vector<const internal::Register*>& workers, const char* collective) {
  return std::all_of(workers.begin(), workers.end(),
                     [&](const internal::Register* worker) { return Can(*worker, collective); });
}

}  // namespace

bool OnSeveralHosts(const std::vector<const internal::Register*>& workers) {
  return std::any_of(workers.begin(), workers.end(), [&](const internal::Register* worker) {
    return worker->host() != workers.front()->host();
  });
}

std::string ChooseCollective(const std::vector<const internal::Register*>& workers) {
  if (AllCan(workers, "nccl")) return "nccl";
  if (!OnSeveralHosts(workers) && AllCan(workers, "shm")) return "shm";
  return AllCan(workers, "gloo") ? "gloo" : "";
}

}  // namespace bitshard
