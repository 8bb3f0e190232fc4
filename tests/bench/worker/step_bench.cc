// Whole steps of a model on in-process ranks, without a coordinator: decode at a context, prefill,
// and many sequences at once. Prints tokens a second by the clock and by the CPU time of one rank,
// where the time of rank 0 (--profile_rank) went by kind of op, and the weights read a second
// beside a plain read in the same run. First what the machine gives to one thread and to all: their
// ratio is the most that more ranks can win (CPUs that are two threads of one core share its
// multipliers and its reads).
//
//   bazel run -c opt //tests/bench/worker:step_bench -- --model=MODEL.gguf --world=2
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <time.h>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_split.h"

#include "kernels/base/check.h"
#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/machine_peak.h"
#include "tests/support/thread_group.h"
#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"
#include "worker/step/step_runner.h"

ABSL_FLAG(std::string, model, "", "checkpoint");
ABSL_FLAG(int, world, 1, "ranks");
ABSL_FLAG(int, profile_rank, 0, "whose time is printed: where it waits, others compute");
ABSL_FLAG(int, threads, 1, "threads of a rank");
ABSL_FLAG(std::string, activations, "a16", "a16, a8 or f32");
ABSL_FLAG(std::string, isa, "", "scalar, avx2 or avx512vnni; empty = the best");
ABSL_FLAG(std::string, cases, "decode,prefill,batch", "which of decode, prefill, batch");
ABSL_FLAG(int, context, 0, "decode: tokens before the first step");
ABSL_FLAG(int, steps, 64, "steps of one repeat of decode and batch");
ABSL_FLAG(int, prompt, 512, "prefill: tokens");
ABSL_FLAG(int, chunk, 256, "prefill: tokens of a step");
ABSL_FLAG(int, sequences, 16, "batch: sequences");
ABSL_FLAG(int, repeats, 3, "the best counts");
ABSL_FLAG(bool, pin, true, "rank r's threads on CPUs of their own");
ABSL_FLAG(bool, profile, true, "print the time by kind of op");

namespace bitshard {
namespace {

using Clock = std::chrono::steady_clock;
using Plans = std::vector<internal::StepPlan>;

double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

internal::NumericsOptions::Activations Activations() {
  internal::NumericsOptions::Activations value;
  std::string name = absl::GetFlag(FLAGS_activations);
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  CHECK(internal::NumericsOptions::Activations_Parse("ACTIVATIONS_" + name, &value)) << name;
  return value;
}

Isa ChosenIsa() {
  const std::string name = absl::GetFlag(FLAGS_isa);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (name == IsaName(isa)) return isa;
  }
  return BestIsa();
}

constexpr uint32_t kBlock = 16, kContext = 8192;

// `sequences` prompts of `prompt` tokens in chunks, then `steps` decodes of all of them. With no
// prompt a sequence begins with one token. `*measured`: index of the first step to be measured.
Plans MakePlans(uint64_t epoch, int sequences, int prompt, int chunk, int steps, size_t* measured) {
  Plans plans;
  const auto next = [&]() -> internal::StepPlan& {
    internal::StepPlan& plan = plans.emplace_back();
    plan.set_term(1);
    plan.set_epoch(epoch);
    plan.set_step(plans.size());
    return plan;
  };
  const auto row = [](internal::StepPlan& plan, int s, int start, int tokens, int output,
                      bool sample) {
    plan.add_slot(s);
    plan.add_slot_gen(1);
    plan.add_start(start);
    plan.add_n_tokens(tokens);
    plan.add_output_index(output);
    plan.add_flags(sample ? internal::ROW_SAMPLE : 0);
    plan.add_n_new_blocks(0);
  };
  const int tokens = std::max(prompt, 1);
  const int blocks = (tokens + steps + kBlock) / kBlock;
  for (int s = 0; s < sequences; ++s) {
    for (int at = 0; at < tokens; at += chunk) {
      internal::StepPlan& plan = next();
      if (at == 0) {
        internal::NewSequence& sequence = *plan.add_new_sequences();
        sequence.set_slot(s);
        sequence.set_slot_gen(1);
        for (int i = 0; i < tokens; ++i) sequence.add_tokens((i * 7919 + s * 104729) % 40000 + 100);
        sequence.set_n_prompt(tokens);
        for (int b = 0; b < blocks; ++b) sequence.add_blocks(s * blocks + b);
        sequence.mutable_sampling()->set_top_p(1);
      }
      const int n = std::min(chunk, tokens - at);
      row(plan, s, at, n, 0, at + n == tokens);
    }
  }
  *measured = plans.size();
  for (int i = 0; i < steps; ++i) {
    internal::StepPlan& plan = next();
    for (int s = 0; s < sequences; ++s) row(plan, s, tokens + i, 1, i + 1, true);
  }
  return plans;
}

struct Taken {
  double wall = 0, cpu = 0;  // seconds; CPU of rank 0's step thread
};

class Ranks {
 public:
  Ranks(TestModel& model, int world) : world_(world), runners_(world), profiles_(world) {
    const auto ranks = model.Ranks(world);
    CHECK_OK(ranks.status());
    const std::vector<int> cpus = AffinityCpus();
    const int threads = absl::GetFlag(FLAGS_threads);
    for (int r = 0; r < world; ++r) {
      std::vector<int> mine;
      for (int t = 0; t < threads && absl::GetFlag(FLAGS_pin); ++t)
        mine.push_back(cpus[(r * threads + t) % cpus.size()]);
      cpus_.push_back(mine);
      pools_.push_back(std::make_unique<ThreadPool>(threads, mine));
      StepRunner::Options options;
      options.numerics.set_activations(Activations());
      options.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_BF16);
      options.numerics.set_block_tokens(kBlock);
      options.numerics.set_max_step_tokens(std::max(absl::GetFlag(FLAGS_chunk), 64));
      options.numerics.set_max_slots(std::max(absl::GetFlag(FLAGS_sequences), 1));
      options.isa = ChosenIsa();
      options.pool = pools_.back().get();
      if (absl::GetFlag(FLAGS_profile)) options.profile = &profiles_[r];
      auto runner = StepRunner::Bind((**ranks)[r].plan, (**ranks)[r].weights, options);
      CHECK_OK(runner.status());
      runners_[r] = *std::move(runner);
    }
  }

  uint64_t NextEpoch() { return ++epoch_; }
  const StepProfile& profile() const { return profiles_[absl::GetFlag(FLAGS_profile_rank)]; }
  void PrintKernels() const {
    for (const internal::KernelChoice& choice : runners_[0]->Kernels())
      std::printf("  %s %s: %s x%d\n", choice.op().c_str(), choice.format().c_str(),
                  choice.kernel().c_str(), static_cast<int>(choice.nodes()));
  }

  // Runs all plans on all ranks; the time is that of plans [measured, end).
  Taken Run(const Plans& plans, size_t measured) {
    const std::string id = UniqueId("step-bench");
    Taken taken;
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back([&, r] {
        if (!cpus_[r].empty()) PinCallingThread(cpus_[r][0]);
        std::unique_ptr<Collective> collective = MakeSoloCollective();
        if (world_ > 1) {
          auto joined = JoinShmCollective(id, r, world_, absl::Seconds(20));
          CHECK_OK(joined.status());
          collective = *std::move(joined);
        }
        StepRunner& runner = *runners_[r];
        CHECK_OK(runner.StartEpoch(1, epoch_, std::move(collective), kContext / kBlock));
        Clock::time_point begin;
        double cpu = 0;
        for (size_t i = 0; i < plans.size(); ++i) {
          if (i == measured) {
            std::fill(profiles_[r].op_ns.begin(), profiles_[r].op_ns.end(), 0);
            begin = Clock::now();
            cpu = Seconds(CLOCK_THREAD_CPUTIME_ID);
          }
          CHECK_OK(runner.Run(plans[i]).status());
        }
        if (r == 0) {
          taken.wall = std::chrono::duration<double>(Clock::now() - begin).count();
          taken.cpu = Seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        }
        CHECK_OK(runner.EndEpoch());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return taken;
  }

 private:
  const int world_;
  std::vector<std::vector<int>> cpus_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<StepProfile> profiles_;
  uint64_t epoch_ = 0;
};

void PrintProfile(const StepProfile& profile, double wall, size_t steps) {
  std::map<std::string, std::pair<int64_t, int>> by_kind;
  int64_t in_ops = 0;
  for (size_t i = 0; i < profile.kinds.size(); ++i) {
    by_kind[profile.kinds[i]].first += profile.op_ns[i];
    ++by_kind[profile.kinds[i]].second;
    in_ops += profile.op_ns[i];
  }
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [kind, taken] : by_kind) sorted.emplace_back(taken.first, kind);
  std::sort(sorted.rbegin(), sorted.rend());
  const double us = wall * 1e6 / static_cast<double>(steps);
  for (const auto& [ns, kind] : sorted) {
    const double mine = static_cast<double>(ns) * 1e-3 / static_cast<double>(steps);
    std::printf("    %-28s %8.1f us a step %5.1f %%  in %d ops\n", kind.c_str(), mine,
                100 * mine / us, by_kind[kind].second);
  }
  const double rest = us - static_cast<double>(in_ops) * 1e-3 / static_cast<double>(steps);
  std::printf("    %-28s %8.1f us a step %5.1f %%\n", "outside ops", rest, 100 * rest / us);
}

// `bytes`: weights that rank 0 reads in a step; 0: not told.
void Case(Ranks& ranks, const char* name, int sequences, int prompt, int chunk, int steps,
          bool decode, double bytes) {
  Taken best;
  double best_cpu = 0;
  StepProfile profile;
  size_t measured_steps = 0;
  for (int i = 0; i < absl::GetFlag(FLAGS_repeats); ++i) {
    size_t measured = 0;
    const Plans plans = MakePlans(ranks.NextEpoch(), sequences, prompt, chunk, steps, &measured);
    if (!decode) measured = 0;
    measured_steps = plans.size() - measured;
    const Taken taken = ranks.Run(plans, measured);
    if (best_cpu == 0 || taken.cpu < best_cpu) best_cpu = taken.cpu;
    if (best.wall == 0 || taken.wall < best.wall) {
      best = taken;
      profile = ranks.profile();
    }
  }
  const double tokens = decode ? sequences * steps : sequences * std::max(prompt, 1);
  std::printf("%s: %.1f tokens/s by wall clock, %.1f by CPU time of rank 0's thread", name,
              tokens / best.wall, tokens / best_cpu);
  if (bytes > 0) {
    const double rate = bytes * static_cast<double>(steps) / best_cpu;
    const MachinePeaks peaks = PeakMeter(1).Measure();
    std::printf(
        "; weights %.1f MB a step and rank, %.2f GB/s of CPU time = %.0f %% of a plain read",
        bytes * 1e-6, rate * 1e-9, 100 * rate / peaks.read_bytes_per_cpu_s);
  }
  std::printf("\n");
  if (absl::GetFlag(FLAGS_profile)) PrintProfile(profile, best.wall, measured_steps);
}

void PrintPeaks(int threads) {
  MachinePeaks one, all;
  const PeakMeter alone(1), together(threads);
  for (int i = 0; i < 3; ++i) {
    one.TakeBest(alone.Measure());
    all.TakeBest(together.Measure());
  }
  std::printf("one thread reads %.1f GB/s and multiplies %.0f Gop/s (%s)",
              one.read_bytes_per_s * 1e-9, one.int_ops_per_s * 1e-9, alone.probe().instruction);
  if (threads > 1) {
    std::printf("; %d at once %.1f GB/s (x%.2f) and %.0f Gop/s (x%.2f)", threads,
                all.read_bytes_per_s * 1e-9, all.read_bytes_per_s / one.read_bytes_per_s,
                all.int_ops_per_s * 1e-9, all.int_ops_per_s / one.int_ops_per_s);
  }
  std::printf("\n");
}

void Main() {
  auto model = TestModel::Open(absl::GetFlag(FLAGS_model));
  CHECK_OK(model.status());
  const int world = absl::GetFlag(FLAGS_world);
  Ranks ranks(**model, world);
  ranks.PrintKernels();
  PrintPeaks(world * absl::GetFlag(FLAGS_threads));
  const auto loaded = (*model)->Ranks(world);
  const double bytes = static_cast<double>((**loaded)[0].weights->arena_bytes);
  const std::vector<std::string> cases = absl::StrSplit(absl::GetFlag(FLAGS_cases), ',');
  const int steps = absl::GetFlag(FLAGS_steps), chunk = absl::GetFlag(FLAGS_chunk);
  for (const std::string& name : cases) {
    if (name == "decode")
      Case(ranks, "decode", 1, absl::GetFlag(FLAGS_context), chunk, steps, true, bytes);
    if (name == "prefill")
      Case(ranks, "prefill", 1, absl::GetFlag(FLAGS_prompt), chunk, 0, false, 0);
    if (name == "batch")
      Case(ranks, "batch", absl::GetFlag(FLAGS_sequences), absl::GetFlag(FLAGS_context), chunk,
           steps, true, bytes);
  }
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  bitshard::Main();
  return 0;
}
