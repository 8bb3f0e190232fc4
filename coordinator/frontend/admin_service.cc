#include "coordinator/frontend/admin_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/watch_status_call.h"
#include "coordinator/frontend/wire.h"
#include "proto/admin.grpc.pb.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr absl::Duration kShortestWatch = absl::Milliseconds(100);
constexpr absl::Duration kLongestDrain = absl::Hours(24);

v1::RankPhase Phase(const RankSnapshot& rank) {
  if (!rank.present) return v1::RANK_PHASE_MISSING;
  switch (rank.phase) {
    case Member::Phase::kConnected:
    case Member::Phase::kRegistered:
      return v1::RANK_PHASE_REGISTERED;
    case Member::Phase::kLoading:
      return v1::RANK_PHASE_LOADING;
    case Member::Phase::kLoaded:
      return v1::RANK_PHASE_LOADED;
    case Member::Phase::kJoining:
    case Member::Phase::kJoined:
      return v1::RANK_PHASE_JOINING;
    case Member::Phase::kAllocating:
      return v1::RANK_PHASE_ALLOCATING;
    case Member::Phase::kReady:
      return v1::RANK_PHASE_READY;
    case Member::Phase::kQuiescing:
      return v1::RANK_PHASE_QUIESCING;
  }
  return v1::RANK_PHASE_UNSPECIFIED;
}

v1::GroupState State(GroupSnapshot::State state) {
  switch (state) {
    case GroupSnapshot::State::kForming:
      return v1::GROUP_STATE_FORMING;
    case GroupSnapshot::State::kReady:
      return v1::GROUP_STATE_READY;
    case GroupSnapshot::State::kLost:
      return v1::GROUP_STATE_LOST;
  }
  return v1::GROUP_STATE_UNSPECIFIED;
}

void FillBringUp(const internal::BringUp& times, v1::BringUpTimes* out) {
  const auto set = [](uint64_t us, google::protobuf::Duration* duration) {
    SetDuration(absl::Microseconds(static_cast<int64_t>(us)), duration);
  };
  set(times.process_start_us(), out->mutable_process_start());
  set(times.kernel_probe_us(), out->mutable_kernel_probe());
  set(times.registration_us(), out->mutable_registration());
  set(times.read_us(), out->mutable_read());
  set(times.pack_us(), out->mutable_pack());
  set(times.load_us(), out->mutable_load());
  set(times.bind_us(), out->mutable_bind());
  set(times.join_us(), out->mutable_join());
  set(times.self_test_us(), out->mutable_self_test());
  set(times.kv_cache_us(), out->mutable_kv_cache());
  set(times.total_us(), out->mutable_total());
}

void FillRank(const RankSnapshot& rank, v1::RankStatus* out) {
  out->set_rank(rank.rank);
  out->set_phase(Phase(rank));
  if (!rank.present) return;
  out->set_host(rank.host);
  out->set_pid(rank.pid);
  out->set_device(absl::StrCat(rank.device, " ", rank.isa));
  if (rank.read_bytes_per_s > 0) out->set_read_bytes_per_s(rank.read_bytes_per_s);
  out->set_step(rank.step);
  out->set_acked_step(rank.acked_step);
  if (rank.busy) out->set_op(rank.op);
  SetDuration(rank.heartbeat_age, out->mutable_heartbeat_age());
  if (rank.phase == Member::Phase::kLoading) {
    out->set_loaded_bytes(rank.done_bytes);
    out->set_total_bytes(rank.total_bytes);
  }
  if (rank.weight_bytes > 0) {
    out->set_weight_bytes(rank.weight_bytes);
    out->set_deterministic(rank.deterministic);
  }
  if (rank.bring_up.total_us() > 0) FillBringUp(rank.bring_up, out->mutable_bring_up());
}

void FillKernels(const RankSnapshot& rank, v1::RankKernels* out) {
  for (const internal::KernelChoice& choice : rank.kernels) {
    v1::KernelBinding& binding = *out->add_kernels();
    binding.set_op(choice.op());
    if (!choice.format().empty()) binding.set_format(choice.format());
    binding.set_kernel(choice.kernel());
    if (!choice.activations().empty()) binding.set_activations(choice.activations());
    binding.set_layers(choice.nodes());
    binding.set_first_layer(choice.first_node());
    binding.set_speed(choice.fallback() ? v1::KERNEL_SPEED_FALLBACK : v1::KERNEL_SPEED_FAST);
    std::string why;
    for (const internal::RefusedChoice& refused : choice.refused()) {
      v1::RefusedKernel& one = *binding.add_refused();
      one.set_kernel(refused.kernel());
      one.set_reason(refused.reason());
      absl::StrAppend(&why, why.empty() ? "" : "; ", refused.kernel(), ": ", refused.reason());
    }
    if (!why.empty()) binding.set_refusal(why);
    binding.set_text(absl::StrCat(choice.op(), choice.format().empty() ? "" : " ", choice.format(),
                                  ": ", choice.kernel(), choice.fallback() ? ", a fallback" : "",
                                  why.empty() ? "" : absl::StrCat(" (", why, ")"), " x",
                                  choice.nodes()));
  }
  for (const internal::ProbeFigure& figure : rank.probe) {
    v1::KernelProbe& probe = *out->add_probe();
    probe.set_kernel(figure.kernel());
    probe.set_activations(figure.activations());
    probe.set_tokens(figure.tokens());
    probe.set_gmacs_per_s(figure.gmacs_per_s());
  }
}

void FillMemory(const RankSnapshot& rank, v1::RankMemory* out) {
  out->set_rank(rank.rank);
  out->set_pid(rank.pid);
  if (rank.weight_bytes > 0) {
    out->set_weight_bytes(rank.weight_bytes);
    out->set_padding_bytes(rank.padding_bytes);
    out->set_vector_bytes(rank.vector_bytes);
    out->set_read_bytes(rank.read_bytes);
  }
  if (rank.memory_age == absl::InfiniteDuration()) return;  // not measured yet
  const internal::MemoryReport& memory = rank.memory;
  out->set_kv_cache_bytes(memory.kv_cache_bytes());
  out->set_workspace_bytes(memory.workspace_bytes());
  out->set_weight_resident_bytes(memory.weight_resident_bytes());
  out->set_kv_cache_resident_bytes(memory.kv_cache_resident_bytes());
  out->set_workspace_resident_bytes(memory.workspace_resident_bytes());
  out->set_resident_bytes(memory.resident_bytes());
  const uint64_t parts = memory.weight_resident_bytes() + memory.kv_cache_resident_bytes() +
                         memory.workspace_resident_bytes();
  out->set_other_bytes(memory.resident_bytes() - std::min(parts, memory.resident_bytes()));
  out->set_peak_resident_bytes(memory.peak_resident_bytes());
  for (const internal::MappedPart& part : memory.mappings()) {
    v1::MemoryMapping& mapping = *out->add_mappings();
    mapping.set_part(part.part());
    mapping.set_address(part.address());
    mapping.set_bytes(part.bytes());
  }
  SetDuration(rank.memory_age, out->mutable_age());
}

class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// clang-format off
template <typename Base> using RawGetStatus = v1::Admin::WithRawCallbackMethod_GetStatus<Base>;
template <typename Base> using RawWatchStatus = v1::Admin::WithRawCallbackMethod_WatchStatus<Base>;
template <typename Base> using RawGetKernelReport = v1::Admin::WithRawCallbackMethod_GetKernelReport<Base>;
template <typename Base> using RawGetMemoryReport = v1::Admin::WithRawCallbackMethod_GetMemoryReport<Base>;
template <typename Base> using RawGetLoad = v1::Admin::WithRawCallbackMethod_GetLoad<Base>;
template <typename Base> using RawDrain = v1::Admin::WithRawCallbackMethod_Drain<Base>;
// clang-format on
using RawAdmin = RawGetStatus<RawWatchStatus<
    RawGetKernelReport<RawGetMemoryReport<RawGetLoad<RawDrain<v1::Admin::Service>>>>>>;

class AdminService final : public RawAdmin {
 public:
  explicit AdminService(const AdminSources* sources) : sources_(sources) {}

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  grpc::ServerUnaryReactor* GetStatus(Context* context, const Bytes* request,
                                      Bytes* response) override {
    return AnswerUnary<v1::GetStatusRequest, v1::GetStatusResponse>(
        context, request, response, [this](const auto&, v1::GetStatusResponse* answer) {
          FillStatus(*sources_, answer->mutable_status());
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<Bytes>* WatchStatus(Context* context, const Bytes* request) override {
    v1::WatchStatusRequest watch;
    const absl::Status status = ParseMessage(*request, &watch);
    if (!status.ok()) return new RefusedStream(EndOfCall(context, status));
    const absl::Duration interval =
        watch.has_interval() ? FromProto(watch.interval()) : absl::Seconds(1);
    if (interval < kShortestWatch) {
      return new RefusedStream(
          EndOfCall(context, BadFieldError("interval", "must be at least 100 ms")));
    }
    return WatchStatusCall::Start(sources_, interval);
  }

  grpc::ServerUnaryReactor* GetKernelReport(Context* context, const Bytes* request,
                                            Bytes* response) override {
    return AnswerUnary<v1::GetKernelReportRequest, v1::GetKernelReportResponse>(
        context, request, response, [this](const auto&, v1::GetKernelReportResponse* answer) {
          for (const RankSnapshot& rank : sources_->group().ranks) {
            if (!rank.present) continue;
            v1::RankKernels& out = *answer->add_ranks();
            out.set_rank(rank.rank);
            FillKernels(rank, &out);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetMemoryReport(Context* context, const Bytes* request,
                                            Bytes* response) override {
    return AnswerUnary<v1::GetMemoryReportRequest, v1::GetMemoryReportResponse>(
        context, request, response, [this](const auto&, v1::GetMemoryReportResponse* answer) {
          for (const RankSnapshot& rank : sources_->group().ranks) {
            if (rank.present) FillMemory(rank, answer->add_ranks());
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetLoad(Context* context, const Bytes* request,
                                    Bytes* response) override {
    return AnswerUnary<v1::GetLoadRequest, v1::GetLoadResponse>(
        context, request, response, [this](const auto&, v1::GetLoadResponse* answer) {
          SetLoad(sources_->engine->Stats(), sources_->load, sources_->readiness->draining(),
                  absl::Now(), answer->mutable_load());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Drain(Context* context, const Bytes* request,
                                  Bytes* response) override {
    return AnswerUnary<v1::DrainRequest, v1::DrainResponse>(
        context, request, response, [this](const v1::DrainRequest& drain, auto*) {
          std::optional<absl::Duration> timeout;
          if (drain.has_timeout()) {
            timeout = FromProto(drain.timeout());
            if (*timeout < absl::ZeroDuration() || *timeout > kLongestDrain) {
              return BadFieldError("timeout", "must be between 0 and 24 hours");
            }
          }
          sources_->drain(timeout);
          return absl::OkStatus();
        });
  }

 private:
  const AdminSources* const sources_;
};

}  // namespace

void FillStatus(const AdminSources& sources, v1::ServiceStatus* out) {
  const EngineStats stats = sources.engine->Stats();
  const GroupSnapshot group = sources.group();
  const Readiness readiness = sources.readiness->Now();
  out->set_version(sources.version);
  out->set_state(State(group.state));
  out->set_ready(readiness.ready);
  std::string reason = readiness.reason;
  if (!readiness.ready && !group.detail.empty())
    absl::StrAppend(&reason, reason.empty() ? "" : ": ", group.detail);
  if (!reason.empty()) out->set_reason(reason);
  out->set_draining(sources.readiness->draining());
  out->set_term(group.term);
  out->set_epoch(group.epoch);
  out->set_world(group.world);
  for (const RankSnapshot& rank : group.ranks) FillRank(rank, out->add_ranks());
  for (const SpareSnapshot& spare : group.spares) {
    v1::SpareWorker& worker = *out->add_spares();
    worker.set_host(spare.host);
    worker.set_pid(spare.pid);
  }
  out->set_steps(stats.epoch_steps);
  SetLoad(stats, sources.load, sources.readiness->draining(), absl::Now(), out->mutable_load());
  out->set_model(sources.model->names.front());
  out->set_model_fingerprint(sources.model->fingerprint);
  SetTimestamp(sources.started_at, out->mutable_started_at());
}

std::unique_ptr<grpc::Service> MakeAdminService(const AdminSources* sources) {
  return std::make_unique<AdminService>(sources);
}

}  // namespace bitshard
