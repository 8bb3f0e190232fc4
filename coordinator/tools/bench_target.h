// The service that `bitshard bench` measures, its own or a running one, and what is known of it.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/tools/bench_measure.h"
#include "coordinator/tools/bench_report.h"
#include "coordinator/tools/local_service.h"
#include "proto/admin.grpc.pb.h"
#include "proto/inference.grpc.pb.h"

namespace bitshard {

class BenchTarget {
 public:
  // What the headers of the model's files, or a synthetic model's config, say of the work: its
  // parameters and bytes.
  absl::Status ReadModel(const std::string& path);
  // Of the model that was read; 0 = none.
  uint64_t context_tokens() const { return context_tokens_; }

  // Either starts a service, quietly, which ends with this object; or uses one that runs.
  // `admin_address` may be "": then nothing is known of its memory.
  absl::Status StartService(LocalServiceOptions options, const std::function<bool()>& stopped);
  void Connect(const std::string& address, const std::string& admin_address);

  // The model of that name; "" = the first. NOT_FOUND lists what there is.
  absl::StatusOr<v1::Model> FindModel(const std::string& name);
  // Out of a text file, or by a generator when `text_path` is "".
  absl::StatusOr<BenchPrompts> MakePrompts(const v1::Model& model, const std::string& text_path,
                                           int64_t seed);
  // Bytes and parameters of `run`, as far as they are known, and its number of workers. REQUIRES:
  // run->kv_cache_type is set.
  absl::Status FillBounds(BenchRun* run);

  // Of the coordinator and its workers, when we started them.
  std::optional<double> CpuSeconds() const;
  v1::Inference::Stub& inference() { return *inference_; }

 private:
  std::unique_ptr<ReadyService> local_;
  std::vector<clockid_t> cpu_clocks_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::string admin_address_;
  // Of the files.
  std::optional<uint64_t> layer_parameters_, stored_bytes_;
  uint64_t context_tokens_ = 0;
  uint64_t lookup_bytes_ = 0;   // an embedding table that is not the lm_head too
  uint64_t cache_numbers_ = 0;  // for one token of context
};

}  // namespace bitshard
