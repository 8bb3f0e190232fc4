#include "tests/support/thread_group.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tests/support/unique_id.h"

namespace bitshard {
namespace {

constexpr absl::Duration kJoinTimeout = absl::Seconds(20);

uint64_t VocabBegin(const internal::ModelGraph& graph) {
  for (const internal::Node& node : graph.nodes()) {
    if (node.has_lm_head()) return node.lm_head().vocab_begin();
  }
  return 0;
}

std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

// Null where the checkpoint has none.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const Checkpoint& checkpoint) {
  if (const auto* vocab = std::get_if<GgufVocab>(&checkpoint.tokenizer)) {
    if (vocab->tokens.empty()) return std::unique_ptr<Tokenizer>();
    return Tokenizer::FromGgufVocab(*vocab);
  }
  const auto& files = std::get<HfTokenizerFiles>(checkpoint.tokenizer);
  if (files.tokenizer_json.empty()) return std::unique_ptr<Tokenizer>();
  return Tokenizer::FromTokenizerJson(files.tokenizer_json, files.tokenizer_config_json);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TestModel>> TestModel::Open(const std::string& path,
                                                           const std::string& tokenizer_of) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(path));
  if (!tokenizer_of.empty()) {
    checkpoint.tokenizer = HfTokenizerFiles{
        .tokenizer_json = ReadWhole(tokenizer_of + "/tokenizer.json"),
        .tokenizer_config_json = ReadWhole(tokenizer_of + "/tokenizer_config.json")};
  }
  auto model = std::unique_ptr<TestModel>(new TestModel(std::move(checkpoint)));
  ASSIGN_OR_RETURN(model->tokenizer_, MakeTokenizer(model->checkpoint_));
  ASSIGN_OR_RETURN(model->graph_,
                   BuildModelGraph(model->checkpoint_.config, model->checkpoint_.index));
  return model;
}

absl::StatusOr<const std::vector<TestModel::Rank>*> TestModel::Ranks(int world,
                                                                     std::vector<double> shares) {
  if (shares.empty()) shares.assign(world, 1.0);
  CHECK_EQ(shares.size(), static_cast<size_t>(world));
  auto& ranks = ranks_[shares];
  if (ranks.empty()) {
    ASSIGN_OR_RETURN(std::vector<internal::RankPlan> plans,
                     ShardModel(graph_, checkpoint_.index, shares));
    ThreadPool pool(1);
    std::vector<Rank> loaded;
    for (internal::RankPlan& plan : plans) {
      ASSIGN_OR_RETURN(auto weights, LoadWeights(plan, pool, [](uint64_t, uint64_t) {}));
      loaded.push_back({std::move(plan), std::move(weights)});
    }
    ranks = std::move(loaded);
  }
  return &ranks;
}

absl::StatusOr<std::unique_ptr<ThreadGroup>> ThreadGroup::Create(TestModel& model,
                                                                 const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<TestModel::Rank>* ranks,
                   model.Ranks(options.world, options.shares));
  auto group = std::unique_ptr<ThreadGroup>(new ThreadGroup(options));
  group->ranks_.resize(options.world);
  for (int rank = 0; rank < options.world; ++rank) {
    RankThread& r = group->ranks_[rank];
    r.pool = std::make_unique<ThreadPool>(options.threads_per_rank);
    StepRunner::Options runner;
    runner.numerics.set_activations(options.activations);
    runner.numerics.set_kv_cache_type(options.kv_cache_type);
    runner.numerics.set_block_tokens(16);
    runner.numerics.set_max_step_tokens(options.max_step_tokens);
    runner.numerics.set_max_slots(options.max_slots);
    if (!options.isas.empty()) runner.isa = options.isas[rank];
    runner.pool = r.pool.get();
    if (options.logits_tap) {
      runner.logits_tap = [tap = options.logits_tap, rank,
                           begin = VocabBegin((*ranks)[rank].plan.graph())](
                              uint32_t slot, uint32_t position, absl::Span<const float> logits) {
        tap(rank, begin, slot, position, logits);
      };
    }
    ASSIGN_OR_RETURN(r.runner,
                     StepRunner::Bind((*ranks)[rank].plan, (*ranks)[rank].weights, runner));
    r.thread = std::thread([raw = group.get(), rank] { raw->RankLoop(rank); });
  }
  RETURN_IF_ERROR(group->StartEpoch());
  return group;
}

ThreadGroup::~ThreadGroup() {
  Stop();
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (RankThread& r : ranks_) {
    if (r.thread.joinable()) r.thread.join();
  }
}

void ThreadGroup::RankLoop(int rank) {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [&] { return stopping_ || !ranks_[rank].queue.empty(); });
      if (ranks_[rank].queue.empty()) return;
      work = std::move(ranks_[rank].queue.front());
      ranks_[rank].queue.pop_front();
    }
    work();
  }
}

void ThreadGroup::Enqueue(int rank, std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ranks_[rank].queue.push_back(std::move(work));
  }
  changed_.notify_all();
}

absl::Status ThreadGroup::OnAllRanks(const std::function<absl::Status(int)>& work) {
  const int world = options_.world;
  std::vector<absl::Status> statuses(world);
  std::mutex mu;
  std::condition_variable done;
  int left = world;
  for (int rank = 0; rank < world; ++rank) {
    Enqueue(rank, [&, rank] {
      absl::Status status = work(rank);
      std::lock_guard<std::mutex> lock(mu);
      statuses[rank] = std::move(status);
      if (--left == 0) done.notify_all();
    });
  }
  std::unique_lock<std::mutex> lock(mu);
  done.wait(lock, [&] { return left == 0; });
  for (int rank = 0; rank < world; ++rank) {
    if (!statuses[rank].ok()) {
      return absl::Status(statuses[rank].code(),
                          absl::StrCat("rank ", rank, ": ", statuses[rank].message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ThreadGroup::StartEpoch() {
  const std::string id = UniqueId("bitshard-test");
  const uint64_t epoch = ++epoch_;
  return OnAllRanks([&](int rank) -> absl::Status {
    StepRunner& runner = *ranks_[rank].runner;
    if (epoch > 1) RETURN_IF_ERROR(runner.EndEpoch());
    std::unique_ptr<Collective> collective;
    if (options_.world == 1) {
      collective = MakeSoloCollective();
    } else {
      ASSIGN_OR_RETURN(collective, JoinShmCollective(id, rank, options_.world, kJoinTimeout));
    }
    if (options_.wrap_collective) collective = options_.wrap_collective(std::move(collective));
    return runner.StartEpoch(term(), epoch, std::move(collective), options_.cache_blocks);
  });
}

absl::StatusOr<internal::StepResult> ThreadGroup::RunPlan(const internal::StepPlan& plan) {
  internal::StepResult result;
  RETURN_IF_ERROR(OnAllRanks([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<internal::StepResult> mine, ranks_[rank].runner->Run(plan));
    if (mine == nullptr) return absl::InternalError("the runner took the plan for a duplicate");
    if (rank == 0) result = *mine;
    return absl::OkStatus();
  }));
  return result;
}

void ThreadGroup::Start(StepListener* listener) {
  listener_ = listener;
  GroupInfo info;
  info.term = term();
  info.epoch = epoch_;
  info.world = options_.world;
  info.cache_blocks = options_.cache_blocks;
  info.max_slots = options_.max_slots;
  info.max_step_tokens = options_.max_step_tokens;
  listener->OnGroupReady(info);
}

void ThreadGroup::Submit(std::unique_ptr<internal::StepPlan> plan) {
  struct Joint {
    std::mutex mu;
    int left;
    absl::Status status;
    std::unique_ptr<internal::StepResult> result;
  };
  auto joint = std::make_shared<Joint>();
  joint->left = options_.world;
  if (options_.edit_plan) options_.edit_plan(plan.get());
  std::shared_ptr<const internal::StepPlan> shared = std::move(plan);
  for (int rank = 0; rank < options_.world; ++rank) {
    Enqueue(rank, [this, rank, joint, shared] {
      auto result = ranks_[rank].runner->Run(*shared);
      std::unique_lock<std::mutex> lock(joint->mu);
      if (!result.ok()) {
        joint->status = result.status();
      } else if (rank == 0) {
        joint->result = *std::move(result);
      }
      if (--joint->left > 0) return;
      lock.unlock();
      if (listener_ == nullptr) return;
      if (joint->status.ok()) {
        listener_->OnStepDone(std::move(joint->result));
      } else {
        listener_->OnGroupLost(shared->term(), shared->epoch(), joint->status);
      }
    });
  }
}

void ThreadGroup::Stop() {
  if (listener_ == nullptr) return;
  // The queues run dry first: after that no event can follow.
  (void)OnAllRanks([](int) { return absl::OkStatus(); });
  listener_ = nullptr;
}

}  // namespace bitshard
