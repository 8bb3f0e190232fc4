// The real program: bitshard-worker processes on the fleet protocol, with real weights and a real
// communicator between them.
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "proto/version.h"
#include "tests/support/unique_id.h"
#include "tests/worker/service/fake_coordinator.h"
#include "tests/worker/tiny_model.h"

extern char** environ;

namespace bitshard {
namespace {

using Stream = FakeCoordinator::Stream;
using internal::CoordinatorMessage;

std::string WorkerBinary() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                      "/worker/bitshard-worker");
}

class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    args.insert(args.begin(), WorkerBinary());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) { kill(pid_, signal); }
  // Exit code, or minus the signal.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

class WorkerProcessTest : public testing::Test {
 protected:
  WorkerProcessTest() {
    token_file_ = absl::StrCat(testing::TempDir(), "/token");
    std::ofstream(token_file_) << "secret\n";
  }

  std::vector<std::string> Args(int local_rank) const {
    return {"--coordinator=" + coordinator_.address(),
            "--token-file=" + token_file_,
            "--threads=1",
            "--memory=256MiB",
            absl::StrCat("--local-rank=", local_rank),
            "--local-ranks=2",
            "--coordinator-timeout=60s",
            "--exit-with-parent",
            "--log-level=warning"};
  }

  static internal::NumericsOptions Numerics() {
    internal::NumericsOptions numerics;
    numerics.set_activations(internal::NumericsOptions::ACTIVATIONS_A16);
    numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_BF16);
    numerics.set_block_tokens(16);
    numerics.set_max_step_tokens(64);
    numerics.set_max_slots(4);
    return numerics;
  }

  static void Assign(Stream& stream, uint64_t term, const internal::RankPlan& plan) {
    CoordinatorMessage message;
    internal::Assign& assign = *message.mutable_assign();
    assign.set_term(term);
    assign.set_rank(plan.rank());
    assign.set_world(plan.world());
    *assign.mutable_plan() = plan;
    *assign.mutable_numerics() = Numerics();
    stream.Send(message);
  }

  // From JoinCommunicator to Ready, on all streams.
  static void BringUp(const std::vector<std::shared_ptr<Stream>>& streams, uint64_t term,
                      uint64_t epoch) {
    CoordinatorMessage join;
    join.mutable_join_communicator()->set_term(term);
    join.mutable_join_communicator()->set_epoch(epoch);
    join.mutable_join_communicator()->set_id(UniqueId("bitshard-proc"));
    join.mutable_join_communicator()->set_timeout_ms(20000);
    for (const auto& stream : streams) stream->Send(join);
    for (const auto& stream : streams) {
      const internal::WorkerMessage message = stream->Next();
      EXPECT_EQ(message.joined().epoch(), epoch) << message.ShortDebugString();
    }
    CoordinatorMessage allocate;
    allocate.mutable_allocate_cache()->set_epoch(epoch);
    allocate.mutable_allocate_cache()->set_blocks(32);
    for (const auto& stream : streams) stream->Send(allocate);
    for (const auto& stream : streams) EXPECT_EQ(stream->Next().ready().epoch(), epoch);
  }

  // A prompt of five tokens and four sampled ones; the tokens, which must be equal on all streams.
  static std::vector<uint32_t> Generate(const std::vector<std::shared_ptr<Stream>>& streams,
                                        uint64_t term, uint64_t epoch) {
    std::vector<uint32_t> tokens;
    for (uint64_t step = 1; step <= 4; ++step) {
      CoordinatorMessage message;
      internal::StepPlan& plan = *message.mutable_step_plan();
      plan.set_term(term);
      plan.set_epoch(epoch);
      plan.set_step(step);
      if (step == 1) {
        internal::NewSequence& sequence = *plan.add_new_sequences();
        for (const uint32_t token : {1u, 20u, 3u, 40u, 5u}) sequence.add_tokens(token);
        sequence.set_n_prompt(5);
        sequence.add_blocks(0);
        sequence.mutable_sampling()->set_top_p(1);
      }
      plan.add_slot(0);
      plan.add_slot_gen(0);
      plan.add_start(step == 1 ? 0 : static_cast<uint32_t>(3 + step));
      plan.add_n_tokens(step == 1 ? 5 : 1);
      plan.add_output_index(static_cast<uint32_t>(step - 1));
      plan.add_flags(internal::ROW_SAMPLE);
      plan.add_n_new_blocks(0);
      for (const auto& stream : streams) stream->Send(message);
      const internal::WorkerMessage result = streams[0]->Next();  // rank 0 speaks for all
      EXPECT_EQ(result.step_result().outputs_size(), 1) << result.ShortDebugString();
      if (result.step_result().outputs_size() != 1) return tokens;
      EXPECT_EQ(result.step_result().rank(), 0u);
      tokens.push_back(result.step_result().outputs(0).token());
    }
    return tokens;
  }

  FakeCoordinator coordinator_;
  std::string token_file_;
};

TEST_F(WorkerProcessTest, TwoProcessesServeLoseOneAndGoOnWithAReplacement) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  const std::vector<internal::RankPlan> plans = CutTinyModel(model, 2);

  std::vector<std::shared_ptr<Stream>> streams(2);
  auto first = std::make_unique<Process>(Args(0));
  Process second(Args(1));
  for (int i = 0; i < 2; ++i) {
    auto stream = coordinator_.Accept();
    ASSERT_NE(stream, nullptr);
    const internal::Register registration = stream->Next().registration();
    EXPECT_EQ(registration.token(), "secret");
    EXPECT_EQ(stream->token(), "secret");
    EXPECT_EQ(registration.build(), kBuildVersion);
    EXPECT_EQ(registration.device(), "cpu");
    EXPECT_EQ(registration.memory_bytes(), 256u << 20);
    EXPECT_EQ(registration.numerics_digest().size(), 32u);
    EXPECT_GT(registration.bandwidth_bytes_per_s(), 0u);
    EXPECT_EQ(registration.ops_size(), 10);
    ASSERT_LT(registration.local_rank(), 2u);
    EXPECT_EQ(registration.pid(), registration.local_rank() == 0 ? first->pid() : second.pid());
    streams[registration.local_rank()] = stream;
  }
  ASSERT_TRUE(streams[0] != nullptr && streams[1] != nullptr);
  const auto await_loaded = [](Stream& stream) {
    internal::WorkerMessage message = stream.Next();
    while (message.has_progress()) message = stream.Next();
    EXPECT_TRUE(message.has_loaded()) << message.ShortDebugString();
    return message.loaded();
  };
  for (int rank = 0; rank < 2; ++rank) Assign(*streams[rank], 1, plans[rank]);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(await_loaded(*streams[rank]).read_bytes(), plans[rank].load().read_bytes());
  }
  BringUp(streams, 1, 1);
  const std::vector<uint32_t> tokens = Generate(streams, 1, 1);
  ASSERT_EQ(tokens.size(), 4u);

  // Rank 0 dies while rank 1 waits for it in a step.
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), -SIGKILL);
  EXPECT_TRUE(streams[0]->WaitForEnd());
  CoordinatorMessage empty;
  empty.mutable_step_plan()->set_term(1);
  empty.mutable_step_plan()->set_epoch(1);
  empty.mutable_step_plan()->set_step(5);
  streams[1]->Send(empty);
  CoordinatorMessage end;
  end.mutable_end_epoch()->set_term(1);
  end.mutable_end_epoch()->set_epoch(1);
  streams[1]->Send(end);
  internal::WorkerMessage message = streams[1]->Next();
  if (message.has_failure())
    message = streams[1]->Next();  // the communicator noticed the death first
  ASSERT_TRUE(message.has_quiesced()) << message.ShortDebugString();
  EXPECT_TRUE(message.quiesced().weights_intact());

  // A replacement takes the lost rank; the survivor keeps its weights; the tokens are the same.
  first = std::make_unique<Process>(Args(0));
  streams[0] = coordinator_.Accept();
  ASSERT_NE(streams[0], nullptr);
  EXPECT_TRUE(streams[0]->Next().has_registration());
  Assign(*streams[0], 2, plans[0]);
  Assign(*streams[1], 2, plans[1]);
  await_loaded(*streams[0]);
  EXPECT_EQ(await_loaded(*streams[1]).read_bytes(), 0u);
  BringUp(streams, 2, 1);
  EXPECT_EQ(Generate(streams, 2, 1), tokens);

  first->Signal(SIGTERM);
  EXPECT_EQ(streams[0]->Next().leaving().reason(), "SIGTERM");
  EXPECT_EQ(first->Wait(), 0);
  CoordinatorMessage release;
  release.mutable_release()->set_exit(true);
  streams[1]->Send(release);
  EXPECT_EQ(second.Wait(), 5);
}

TEST_F(WorkerProcessTest, BadFlagsEndTheStartWithAHint) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {},
           {"--coordinator=nowhere"},
           {"--coordinator=127.0.0.1:1", "--isa=sse9"},
           {"--coordinator=127.0.0.1:1", "--memory=lots"},
           {"--coordinator=127.0.0.1:1", "--threads=-3"},
           {"--coordinator=127.0.0.1:1", "--pin=maybe"},
           {"--coordinator=127.0.0.1:1", "--collective=mpi"},
           {"--coordinator=127.0.0.1:1", "--gloo-interface=eth0", "--gloo-address=10.0.0.1"},
           {"--coordinator=127.0.0.1:1", "--token-file=/nonexistent/token"},
           {"--coordinator=127.0.0.1:1", "--coordinator-timeout=-1s"},
           {"--coordinator=127.0.0.1:1", "--log-level=loud"}}) {
    Process process(args);
    EXPECT_EQ(process.Wait(), 2) << (args.empty() ? "" : args.back());
  }
}

TEST_F(WorkerProcessTest, DiesWithItsParent) {
  // A child of ours starts the worker and dies at once.
  const pid_t middle = fork();
  if (middle == 0) {
    std::vector<std::string> args = Args(0);
    args.insert(args.begin(), WorkerBinary());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t worker = 0;
    if (posix_spawn(&worker, argv[0], nullptr, nullptr, argv.data(), environ) != 0) _exit(1);
    pause();
    _exit(0);
  }
  auto stream = coordinator_.Accept();
  ASSERT_NE(stream, nullptr);
  EXPECT_TRUE(stream->Next().has_registration());
  kill(middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  EXPECT_TRUE(stream->WaitForEnd());
}

}  // namespace
}  // namespace bitshard
