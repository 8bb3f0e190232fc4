#include "coordinator/tools/bench_target.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <grpcpp/grpcpp.h>

#include "coordinator/synthetic/synthetic_checkpoint.h"
#include "coordinator/tools/client.h"
#include "kernels/base/status_macros.h"
#include "proto/status_map.h"

namespace bitshard {
namespace {

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

// Without scales beside the numbers; 0 when the type is not known here.
int CacheNumberBytes(const std::string& type) {
  if (type == "f32") return 4;
  if (type == "bf16" || type == "f16") return 2;
  return type == "int8" || type == "fp8_e4m3" ? 1 : 0;
}

}  // namespace

absl::Status BenchTarget::ReadModel(const std::string& path) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenModel(path));
  uint64_t parameters = 0, bytes = 0;
  for (const TensorInfo& tensor : checkpoint.index.tensors()) {
    const bool embedding = tensor.name == "model.embed_tokens.weight";
    bytes += tensor.bytes();
    if (embedding && !checkpoint.config.tied_embeddings) lookup_bytes_ += tensor.bytes();
    if (tensor.rows > 1 && !embedding && tensor.name != "lm_head.weight")
      parameters += tensor.rows * tensor.cols;
  }
  layer_parameters_ = parameters;
  stored_bytes_ = bytes;
  const ModelConfig& config = checkpoint.config;
  context_tokens_ = config.context_length;
  cache_numbers_ = uint64_t{2} * config.layers * config.kv_heads * config.head_dim;
  return absl::OkStatus();
}

absl::Status BenchTarget::StartService(LocalServiceOptions options,
                                       const std::function<bool()>& stopped) {
  options.log_level = "error";
  ASSIGN_OR_RETURN(local_, ReadyService::Start(std::move(options), stopped));
  LocalService& service = local_->service();
  std::vector<pid_t> pids = {service.coordinator()->pid()};
  for (const ChildProcess& worker : local_->workers()) pids.push_back(worker.pid());
  for (pid_t pid : pids) {
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) == 0) cpu_clocks_.push_back(clock);
  }
  if (cpu_clocks_.size() != pids.size()) cpu_clocks_.clear();
  Connect("127.0.0.1:" + service.port("port"), "127.0.0.1:" + service.port("admin_port"));
  return absl::OkStatus();
}

void BenchTarget::Connect(const std::string& address, const std::string& admin_address) {
  inference_ =
      v1::Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  admin_address_ = admin_address;
  if (!admin_address.empty()) {
    admin_ =
        v1::Admin::NewStub(grpc::CreateChannel(admin_address, grpc::InsecureChannelCredentials()));
  }
}

std::optional<double> BenchTarget::CpuSeconds() const {
  if (cpu_clocks_.empty()) return std::nullopt;
  double seconds = 0;
  for (clockid_t clock : cpu_clocks_) {
    timespec time;
    if (clock_gettime(clock, &time) != 0) return std::nullopt;
    seconds += static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return seconds;
}

absl::StatusOr<v1::Model> BenchTarget::FindModel(const std::string& name) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ListModelsResponse response;
  const grpc::Status status = inference_->ListModels(&context, v1::ListModelsRequest(), &response);
  if (!status.ok()) return FromGrpc(status);
  std::vector<std::string> known;
  for (const v1::Model& model : response.models()) {
    if (name.empty() || model.name() == name) return model;
    known.push_back(model.name());
  }
  return absl::NotFoundError(absl::StrCat("the service has no model \"", name,
                                          "\"; it has: ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<BenchPrompts> BenchTarget::MakePrompts(const v1::Model& model,
                                                      const std::string& text_path, int64_t seed) {
  if (text_path.empty()) {
    if (model.vocabulary_size() == 0)
      return absl::InternalError("the service does not tell its vocabulary's size");
    return BenchPrompts(model.vocabulary_size(), static_cast<uint64_t>(seed));
  }
  std::ifstream file(text_path, std::ios::binary);
  if (!file)
    return absl::NotFoundError(absl::StrCat("--prompt-file=", text_path, ": cannot be read"));
  v1::TokenizeRequest request;
  request.set_model(model.name());
  request.set_text(
      std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  request.set_add_special(false);
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  const grpc::Status status = inference_->Tokenize(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  if (response.token_ids().empty())
    return absl::InvalidArgumentError(absl::StrCat("--prompt-file=", text_path, " holds no text"));
  return BenchPrompts({response.token_ids().begin(), response.token_ids().end()});
}

absl::Status BenchTarget::FillBounds(BenchRun* run) {
  BenchBounds& bounds = run->bounds;
  bounds.layer_parameters = layer_parameters_;
  if (stored_bytes_) bounds.step_weight_bytes = *stored_bytes_ - lookup_bytes_;
  if (const int bytes = CacheNumberBytes(run->kv_cache_type); cache_numbers_ > 0 && bytes > 0)
    bounds.kv_bytes_a_token = static_cast<double>(cache_numbers_) * bytes;
  if (!admin_) return absl::OkStatus();

  // What the service says of its memory counts before what the files say.
  grpc::ClientContext status_context, memory_context;
  SetDeadline(&status_context);
  SetDeadline(&memory_context);
  v1::GetStatusResponse status;
  grpc::Status called = admin_->GetStatus(&status_context, v1::GetStatusRequest(), &status);
  if (!called.ok()) return AdminError(admin_address_, called);
  run->workers = static_cast<int>(status.status().world());
  uint64_t weights = 0, cache = 0, device_reads = 0;
  for (const v1::RankStatus& rank : status.status().ranks()) {
    weights += rank.weight_bytes();
    if (absl::StartsWith(rank.device(), "cpu")) continue;
    ++bounds.devices;
    device_reads += rank.read_bytes_per_s();
  }
  if (bounds.devices > 0)
    bounds.peaks = MachinePeaks{.read_bytes_per_s = static_cast<double>(device_reads)};
  if (weights > lookup_bytes_) bounds.step_weight_bytes = weights - lookup_bytes_;

  v1::GetMemoryReportResponse memory;
  called = admin_->GetMemoryReport(&memory_context, v1::GetMemoryReportRequest(), &memory);
  if (called.error_code() == grpc::StatusCode::UNIMPLEMENTED) return absl::OkStatus();
  if (!called.ok()) return AdminError(admin_address_, called);
  for (const v1::RankMemory& rank : memory.ranks()) cache += rank.kv_cache_bytes();
  const v1::Load& load = status.status().load();
  const uint64_t cache_tokens = uint64_t{load.blocks().total()} * load.block_tokens();
  if (cache > 0 && cache_tokens > 0)
    bounds.kv_bytes_a_token = static_cast<double>(cache) / static_cast<double>(cache_tokens);
  return absl::OkStatus();
}

}  // namespace bitshard
