#include "worker/device/worker_device.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device_limits.h"
#include "worker/collective/device_collective.h"
#include "worker/device/device_executor.h"
#include "worker/device/device_op.h"
#include "worker/device/device_weights.h"
#include "worker/load/load_plan.h"

namespace bitshard {
namespace {

// Of the arithmetic of device_kernels.h: another number, other bits.
constexpr int kNumericsVersion = 1;

bool HasCuda() {
  const std::vector<std::string> kinds = DeviceKinds();
  return std::find(kinds.begin(), kinds.end(), "cuda") != kinds.end();
}

// Sums between ranks that cannot reach each other's memory go through the host's, unless NCCL is
// told to do without.
absl::Status CheckPeers(const Device& device, int local_ranks) {
  const char* const off = std::getenv("NCCL_SHM_DISABLE");
  if (local_ranks <= 1 || (off != nullptr && absl::string_view(off) == "1"))
    return absl::OkStatus();
  const absl::Status room = CheckSharedMemory(local_ranks);
  const std::string warning = PeerWarning(device, local_ranks);
  if (warning.empty()) {
    if (!room.ok()) LogWarning("worker: {}", std::string(room.message()));
    return absl::OkStatus();
  }
  LogWarning("worker: {}", warning);
  return room;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerDevice>> WorkerDevice::Open(const WorkerOptions& options) {
  const AskedDevice& asked = options.device;
  if (asked.kind == AskedDevice::Kind::kCpu) return nullptr;
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", asked.index);
  if (!device.ok()) {
    // A program with GPUs built in takes the CPU only when told to.
    if (asked.kind == AskedDevice::Kind::kCuda || (!asked.told && HasCuda()))
      return device.status();
    if (asked.told) {
      LogWarning("worker: --device=auto: the CPU, because: {}",
                 std::string(device.status().message()));
    }
    return nullptr;
  }
  if (options.collectives.size() == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--collective=", options.collectives[0],
                     " is how ranks on CPUs meet, and this worker computes on a GPU, whose ranks "
                     "meet over ",
                     absl::StrJoin(DeviceCollectives((*device)->facts().kind), ", "),
                     "; leave --collective at auto, or use --device=cpu"));
  }
  const DeviceFacts& facts = (*device)->facts();
  RETURN_IF_ERROR(CheckPeers(**device, static_cast<int>(options.local_ranks)));
  ASSIGN_OR_RETURN(const DeviceMemory memory, (*device)->Mem());
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseMemory(options.memory, memory.free_bytes));
  if (bytes > memory.free_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory=", options.memory, ": ", facts.kind, ":", facts.index, " (",
                     facts.name, ") has ", memory.free_bytes, " of ", memory.total_bytes,
                     " bytes free; give less, or a share such as 90%"));
  }
  LogInfo(
      "worker: device={}:{} name=\"{}\" architecture={} driver={} free_bytes={} total_bytes={} "
      "may_use_bytes={}",
      facts.kind, facts.index, facts.name, facts.architecture, facts.driver, memory.free_bytes,
      memory.total_bytes, bytes);
  return std::unique_ptr<WorkerDevice>(new WorkerDevice(*std::move(device), bytes, options));
}

void WorkerDevice::Describe(internal::Register& out) const {
  const DeviceFacts& facts = device_->facts();
  out.set_device(absl::StrCat(facts.kind, ":", facts.index, " ", facts.name));
  out.set_isa(facts.architecture);
  out.set_memory_bytes(memory_bytes_);
  out.set_bandwidth_bytes_per_s(facts.bandwidth_bytes_per_s);
  // Never that of a CPU, which is hex digits. How tensor cores add is the architecture's own.
  out.set_numerics_digest(
      absl::StrCat(facts.kind, " ", facts.architecture, " fp16 v", kNumericsVersion));
  for (std::string& op : RegisteredDeviceOps()) out.add_ops(std::move(op));
  for (const std::string& name : DeviceCollectives(facts.kind)) out.add_collectives(name);
  out.set_device_id(DeviceIdentity(*device_));
}

absl::StatusOr<std::shared_ptr<const LoadedWeights>> WorkerDevice::Load(
    const internal::RankPlan& plan, ThreadPool& pool, const LoadProgressFn& progress) {
  use_.weight_bytes = 0;
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckedLoadPlan> checked, CheckLoadPlan(plan));
  RETURN_IF_ERROR(Explain({.weight_bytes = checked->arena_bytes}));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightSink> sink,
      MakeDeviceWeightSink(*device_, static_cast<size_t>(plan.graph().weights_size()), pool));
  ASSIGN_OR_RETURN(std::shared_ptr<const LoadedWeights> weights,
                   LoadWeights(plan, pool, progress, memory_bytes_, sink.get()));
  use_.weight_bytes = weights->device->bytes();
  return weights;
}

absl::StatusOr<std::unique_ptr<StepRunner>> WorkerDevice::Bind(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    StepRunner::Options options) {
  const uint64_t weight_bytes = weights->device->bytes();
  options.max_workspace_bytes = memory_bytes_ - std::min(memory_bytes_, weight_bytes);
  ASSIGN_OR_RETURN(
      std::unique_ptr<StepRunner> runner,
      BindRunnerOnDevice(plan, std::move(weights),
                         {.device = device_.get(), .use = &use_, .profile_ops = profile_ops_},
                         options));
  const DeviceMemoryNeed need = {.weight_bytes = weight_bytes,
                                 .kv_bytes = runner->CacheBytesPerBlock(),
                                 .workspace_bytes = runner->WorkspaceBytes()};
  RETURN_IF_ERROR(Explain(need));
  return runner;
}

absl::Status WorkerDevice::Explain(const DeviceMemoryNeed& need) const {
  DeviceMemory budget;
  budget.free_bytes = memory_bytes_;
  budget.total_bytes = device_->facts().total_bytes;
  return ExplainMemory(device_->facts(), budget, need);
}

absl::StatusOr<std::unique_ptr<Collective>> WorkerDevice::Join(
    const internal::JoinCommunicator& join, int rank, int world, const TellRanksFn& tell,
    const std::atomic<bool>& stop) {
  // All ranks are here, more than --local-ranks told.
  if (!join.several_hosts() && world > local_ranks_) RETURN_IF_ERROR(CheckPeers(*device_, world));
  DeviceGroup group;
  group.id = join.id();
  group.epoch = join.epoch();
  group.rank = rank;
  group.world = world;
  group.tell = tell;
  group.device = device_.get();
  group.operation_timeout = absl::Milliseconds(join.operation_timeout_ms());
  group.connect_timeout = absl::Milliseconds(join.timeout_ms());
  ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceCollective> joined,
      JoinDeviceCollective(join.collective(), group, absl::Milliseconds(join.timeout_ms()), &stop));
  return std::unique_ptr<Collective>(std::move(joined));
}

void WorkerDevice::AddMemory(internal::MemoryReport& report) const {
  const auto add = [&report](const char* part, uint64_t bytes) {
    internal::MappedPart& mapping = *report.add_mappings();
    mapping.set_part(part);
    mapping.set_bytes(bytes);
  };
  report.set_kv_cache_bytes(use_.kv_cache_bytes);
  report.set_workspace_bytes(use_.workspace_bytes);
  add("device_weights", use_.weight_bytes);
  add("device_kv_cache", use_.kv_cache_bytes);
  add("device_workspace", use_.workspace_bytes);
  add("device_pinned_host", use_.pinned_bytes);
  if (const absl::StatusOr<DeviceMemory> memory = device_->Mem(); memory.ok()) {
    add("device_free", memory->free_bytes);
    add("device_total", memory->total_bytes);
  }
}

}  // namespace bitshard
