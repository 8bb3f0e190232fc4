#include "coordinator/frontend/admin_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/frontend/to_proto.h"
#include "coordinator/frontend/watch_status_call.h"
#include "coordinator/frontend/wire.h"
#include "proto/inference.grpc.pb.h"
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

void FillRank(const RankSnapshot& rank, v1::RankStatus* out) {
  out->set_rank(rank.rank);
  out->set_phase(Phase(rank));
  if (!rank.present) return;
  out->set_host(rank.host);
  out->set_pid(rank.pid);
  out->set_device(absl::StrCat(rank.device, " ", rank.isa));
  out->set_step(rank.step);
  out->set_acked_step(rank.acked_step);
  if (rank.busy) out->set_op(rank.op);
  SetDuration(rank.heartbeat_age, out->mutable_heartbeat_age());
  if (rank.phase == Member::Phase::kLoading) {
    out->set_loaded_bytes(rank.done_bytes);
    out->set_total_bytes(rank.total_bytes);
  }
  if (rank.weight_bytes > 0) out->set_weight_bytes(rank.weight_bytes);
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
            for (const std::string& line : rank.kernels) out.add_kernels()->set_text(line);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetMemoryReport(Context* context, const Bytes* request,
                                            Bytes* response) override {
    return AnswerUnary<v1::GetMemoryReportRequest, v1::GetMemoryReportResponse>(
        context, request, response, [](const auto&, auto*) {
          return absl::UnimplementedError(
              "GetMemoryReport is not built yet; built: GetStatus (weight_bytes of each rank), "
              "WatchStatus, "
              "GetKernelReport, GetLoad, Drain");
        });
  }

  grpc::ServerUnaryReactor* GetLoad(Context* context, const Bytes* request,
                                    Bytes* response) override {
    return AnswerUnary<v1::GetLoadRequest, v1::GetLoadResponse>(
        context, request, response, [this](const auto&, v1::GetLoadResponse* answer) {
          SetLoad(sources_->engine->Stats(), sources_->block_tokens, answer->mutable_load());
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
  out->set_steps(stats.steps);
  SetLoad(stats, sources.block_tokens, out->mutable_load());
  out->set_model(sources.model->names.front());
  out->set_model_fingerprint(sources.model->fingerprint);
  SetTimestamp(sources.started_at, out->mutable_started_at());
}

std::unique_ptr<grpc::Service> MakeAdminService(const AdminSources* sources) {
  return std::make_unique<AdminService>(sources);
}

}  // namespace bitshard
