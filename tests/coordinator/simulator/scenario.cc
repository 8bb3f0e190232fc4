#include "tests/coordinator/simulator/scenario.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tests/coordinator/simulator/truth.h"
#include "tests/support/words_grammar.h"

namespace bitshard::sim {
namespace {

// What a simulation is about; the rest is drawn.
struct Kind {
  const char* name;
  uint32_t percent;
  uint32_t least_requests, most_requests;
  bool faults, one_level;
};
constexpr Kind kKinds[] = {
    {"calm", 55, 3, 12, false, false},
    {"faults", 42, 2, 9, true, false},
    {"flood", 3, 24, 40, false, true},  // one tenant sends far more than the others
};

constexpr uint32_t kPrefixTokens = 48;
constexpr int kGrammars = 8;

std::shared_ptr<const CompiledGrammar> GrammarOf(int number) {
  static const auto* const grammars = [] {
    auto* made = new std::array<std::shared_ptr<const CompiledGrammar>, kGrammars>;
    Random dice(4711);
    for (auto& grammar : *made) {
      std::vector<std::string> words(1 + dice.Below(4));
      for (std::string& word : words) {
        for (uint32_t letters = 1 + dice.Below(7); letters > 0; --letters)
          word += static_cast<char>('a' + dice.Below(4));
      }
      grammar = std::make_shared<WordsGrammar>(std::move(words));
    }
    return made;
  }();
  return (*grammars)[static_cast<size_t>(number)];
}

class Maker {
 public:
  explicit Maker(uint64_t seed) : dice_(seed ^ 0x5CE7A210) {
    scenario_.seed = seed;
    uint32_t percent = dice_.Below(100);
    for (const Kind& kind : kKinds) {
      kind_ = kind;
      if (percent < kind.percent) break;
      percent -= kind.percent;
    }
    scenario_.kind = kind_.name;
  }

  Scenario Make() && {
    MakeGroup();
    MakeEngine();
    const uint32_t prefixes = dice_.Below(3);
    for (uint32_t i = 0; i < prefixes; ++i) {
      // They share beginnings, too.
      std::vector<int32_t> prefix;
      if (i > 0) prefix.assign(prefixes_[0].begin(), prefixes_[0].begin() + dice_.Below(24));
      while (prefix.size() < kPrefixTokens) prefix.push_back(PromptToken());
      prefixes_.push_back(std::move(prefix));
    }
    const uint32_t requests = dice_.Range(kind_.least_requests, kind_.most_requests);
    int64_t at = 0;
    const int64_t pause = dice_.Percent(60) ? 2 * kMillisecond : 25 * kMillisecond;
    for (uint32_t i = 0; i < requests; ++i) {
      if (!kind_.one_level) at += dice_.Between(0, pause);
      MakeArrival(i, at);
    }
    if (kind_.faults) MakeFaults(at + 100 * kMillisecond);
    if (dice_.Percent(4)) {
      scenario_.drain_at_us = dice_.Between(0, at + 50 * kMillisecond);
      scenario_.drain_for_us = dice_.Between(0, 200 * kMillisecond);
    }
    return std::move(scenario_);
  }

 private:
  void MakeGroup() {
    GroupOptions& group = scenario_.fleet.group;
    group.world = kind_.faults ? dice_.Range(1, 3) : dice_.Range(1, 2);
    group.build = "simulated";
    group.instance = absl::StrCat("seed-", scenario_.seed);
    const uint32_t block_tokens = dice_.Percent(30)   ? 16
                                  : dice_.Percent(50) ? 4
                                                      : dice_.Range(1, 8);
    group.numerics.set_block_tokens(block_tokens);
    group.numerics.set_max_slots(dice_.Range(1, 8));
    group.numerics.set_max_step_tokens(dice_.Range(4, 64));
    group.build_plans = [world = group.world](const std::vector<double>&) {
      std::vector<internal::RankPlan> plans(world);
      for (uint32_t rank = 0; rank < world; ++rank) {
        plans[rank].set_rank(rank);
        plans[rank].set_world(world);
        plans[rank].set_digest(absl::StrCat("plan-", rank));
      }
      return plans;
    };
    // Room for one and a half to several of the larger requests.
    const uint32_t blocks = std::max(2u, dice_.Range(24, 100) / block_tokens);
    pool_tokens_ = blocks * block_tokens;
    const bool differ = kind_.faults && dice_.Percent(20);
    const uint32_t workers = group.world + (kind_.faults && dice_.Percent(25) ? 1 : 0);
    for (uint32_t i = 0; i < workers; ++i) {
      Worker::Options worker;
      worker.number = i;
      worker.cache_blocks = blocks + (differ ? dice_.Below(4) : 0);
      worker.load_us = dice_.Between(5, 200) * kMillisecond;
      worker.step_us = dice_.Between(1, 8) * kMillisecond;
      worker.shape = {.block_tokens = block_tokens,
                      .max_slots = group.numerics.max_slots(),
                      .max_step_tokens = group.numerics.max_step_tokens()};
      scenario_.fleet.workers.push_back(std::move(worker));
    }
    if (dice_.Percent(8)) {
      for (uint32_t i = dice_.Range(1, 2); i > 0; --i)
        scenario_.fleet.workers[0].bad_blocks.push_back(dice_.Below(blocks));
    }
    scenario_.fleet.latency_us = dice_.Percent(50) ? 200 : 3 * kMillisecond;
  }

  void MakeEngine() {
    Engine::Options& options = scenario_.engine.engine;
    options.token_budget = dice_.Range(2, 48);
    options.prefill_chunk = dice_.Percent(30) ? dice_.Range(1, 12) : 0;
    options.max_running = kind_.one_level ? dice_.Range(1, 3) : dice_.Range(1, 8);
    options.max_waiting = dice_.Percent(90) || kind_.one_level ? 1000 : dice_.Range(1, 4);
    if (dice_.Percent(5)) options.max_queue_wait = absl::Milliseconds(dice_.Range(1, 200));
    if (dice_.Percent(30)) options.itl_slo = absl::Milliseconds(dice_.Range(1, 20));
    options.tenant_weights = {{"a", 0.5 + dice_.Below(3)}};
    options.vocab_size = kVocab;
    options.fail_on_group_loss = dice_.Percent(20);
    options.async_depth = dice_.Range(1, 2);
    options.prefix_cache = dice_.Percent(80);
    options.model_fingerprint = "fingerprint";
    options.idle_plan_interval = absl::Milliseconds(dice_.Range(50, 1000));
    scenario_.fleet.most_plans_out = options.async_depth;
    scenario_.engine.check_every = 3;
    // With the longest several results are read at once.
    const int64_t delays[] = {100, 100, 2 * kMillisecond, 20 * kMillisecond};
    scenario_.engine.turn_delay_us = delays[dice_.Below(4)];
    scenario_.engine.mask_delay_us = dice_.Percent(70) ? 500 : 30 * kMillisecond;
    sick_ = dice_.Percent(12);
  }

  int32_t PromptToken() { return 'a' + static_cast<int32_t>(dice_.Below(16)); }

  void MakeArrival(uint32_t number, int64_t at) {
    Arrival arrival;
    arrival.at_us = at;
    GenerateRequest& request = arrival.request;
    request.request_id = absl::StrCat("r", dice_.Percent(3) ? dice_.Below(number + 1) : number);
    uint32_t identity = dice_.Percent(75) ? dice_.Below(3) : dice_.Below(kIdentities - 1);
    if (kind_.one_level) identity = dice_.Percent(70) ? 0 : dice_.Range(1, 2);
    if (sick_ && dice_.Percent(25)) identity = kSickIdentity;
    const GenerateRequest* const twin = number > 0 && dice_.Percent(15)
                                            ? &scenario_.arrivals[dice_.Below(number)].request
                                            : nullptr;
    if (twin != nullptr) identity = IdentityOf(twin->top_k);
    request.caller = CallerOf(identity);
    request.cache_salt = SaltOf(identity);
    request.top_k = TopKOf(identity);
    request.seed = dice_.Next();
    request.temperature = dice_.Percent(50) ? 1 : 0;
    MakePrompt(request);
    if (twin != nullptr) {
      request.prompt_tokens = twin->prompt_tokens;
      request.max_tokens = std::max(1u, twin->max_tokens);
    }
    if (!kind_.one_level) {
      request.batch = dice_.Percent(20);
      request.priority = static_cast<int32_t>(dice_.Below(3)) - 1;
      MakeRules(request);
      if (dice_.Percent(7)) arrival.deadline_after_us = dice_.Between(1, 300 * kMillisecond);
      if (dice_.Percent(10)) {
        arrival.cancelled_after_us = dice_.Between(0, 150 * kMillisecond);
        arrival.by_name = dice_.Percent(50);
      }
    }
    scenario_.arrivals.push_back(std::move(arrival));
  }

  void MakePrompt(GenerateRequest& request) {
    const uint32_t most = dice_.Percent(4) ? pool_tokens_ + 8 : pool_tokens_ * 2 / 3;
    const uint32_t total = dice_.Range(2, std::max(2u, std::min(most, 64u)));
    const uint32_t most_outputs = kind_.one_level ? 6 : dice_.Percent(30) ? 40 : 16;
    request.max_tokens = dice_.Range(1, std::min(total - 1, most_outputs));
    const uint32_t n_prompt = total - request.max_tokens;
    if (!prefixes_.empty() && dice_.Percent(65)) {
      const std::vector<int32_t>& prefix =
          prefixes_[dice_.Below(static_cast<uint32_t>(prefixes_.size()))];
      const uint32_t common = std::min(n_prompt, dice_.Range(1, kPrefixTokens));
      request.prompt_tokens.assign(prefix.begin(), prefix.begin() + common);
    }
    while (request.prompt_tokens.size() < n_prompt) request.prompt_tokens.push_back(PromptToken());
  }

  // How it ends, and what else is wanted of it.
  void MakeRules(GenerateRequest& request) {
    request.ignore_eos = dice_.Percent(40);
    request.logprobs = dice_.Percent(30);
    request.status_events = dice_.Percent(10);
    if (dice_.Percent(5)) {
      request.max_tokens = 0;
      request.pooling = dice_.Percent(50) ? internal::POOLING_LAST : internal::POOLING_MEAN;
      return;
    }
    if (dice_.Percent(8)) {
      request.score_from = dice_.Below(static_cast<uint32_t>(request.prompt_tokens.size()));
      if (dice_.Percent(50)) {
        request.max_tokens = 0;
        return;
      }
    }
    if (dice_.Percent(10)) {
      request.grammar = GrammarOf(static_cast<int>(dice_.Below(kGrammars)));
    } else {
      if (dice_.Percent(15)) request.min_tokens = dice_.Below(request.max_tokens + 1);
      // Of one length, so that no two can come to their end at the same token.
      const size_t letters = dice_.Range(2, 3);
      for (uint32_t stops = dice_.Percent(25) ? dice_.Range(1, 2) : 0; stops > 0; --stops) {
        std::string stop;
        while (stop.size() < letters) stop += static_cast<char>('a' + dice_.Below(4));
        if (request.stop.empty() || request.stop[0] != stop) request.stop.push_back(stop);
      }
      if (dice_.Percent(10)) {
        request.stop_token_ids.push_back('a' + static_cast<int32_t>(dice_.Below(4)));
      } else {
        request.include_stop = dice_.Percent(30);
      }
    }
    const uint32_t most_choices = std::min(3u, scenario_.engine.engine.max_running);
    if (most_choices > 1 && dice_.Percent(12)) request.choices = dice_.Range(2, most_choices);
    if (request.choices == 1 && !request.score_from.has_value() && dice_.Percent(8)) {
      const Expected expected = ExpectedOf(request, request.seed);
      if (expected.code != absl::StatusCode::kOk) return;
      const uint32_t kept = dice_.Below(static_cast<uint32_t>(expected.tokens.size()) + 1);
      request.resumed.assign(expected.tokens.begin(), expected.tokens.begin() + kept);
    }
  }

  void MakeFaults(int64_t last_us) {
    const uint32_t workers = static_cast<uint32_t>(scenario_.fleet.workers.size());
    for (uint32_t i = dice_.Range(1, 3); i > 0; --i) {
      Fault fault;
      fault.kind = static_cast<FaultKind>(dice_.Below(kFaultKinds));
      fault.worker = dice_.Below(workers);
      if (dice_.Percent(60)) {
        fault.phase = dice_.Percent(50) ? Phase::kStep : static_cast<Phase>(dice_.Below(kPhases));
        fault.skip = fault.phase == Phase::kStep ? dice_.Below(24) : dice_.Below(2);
        fault.after_us = dice_.Between(0, 10 * kMillisecond);
      } else {
        fault.after_us = dice_.Between(0, last_us);
      }
      // Around the time after which the silent are given up.
      fault.lasts_us = dice_.Percent(70) ? dice_.Between(10, 500) * kMillisecond
                                         : dice_.Between(2500, 4500) * kMillisecond;
      scenario_.fleet.faults.push_back(fault);
    }
  }

  Random dice_;
  Kind kind_ = kKinds[0];
  Scenario scenario_;
  uint32_t pool_tokens_ = 0;
  bool sick_ = false;
  std::vector<std::vector<int32_t>> prefixes_;
};

}  // namespace

std::string Scenario::Describe() const {
  const Engine::Options& e = engine.engine;
  const internal::NumericsOptions& n = fleet.group.numerics;
  std::string text = absl::StrCat(
      kind, ": world ", fleet.group.world, ", ", fleet.workers.size(), " workers, blocks of ",
      n.block_tokens(), " tokens, ", n.max_slots(), " slots, ", n.max_step_tokens(),
      " tokens a step\nengine: token_budget ", e.token_budget, ", prefill_chunk ", e.prefill_chunk,
      ", max_running ", e.max_running, ", async_depth ", e.async_depth, ", prefix_cache ",
      e.prefix_cache, ", itl_slo ", absl::FormatDuration(e.itl_slo), ", fail_on_group_loss ",
      e.fail_on_group_loss, ", max_waiting ", e.max_waiting, "\n");
  for (const Worker::Options& worker : fleet.workers)
    absl::StrAppend(&text, "worker ", worker.number, ": ", worker.cache_blocks, " blocks, bad: [",
                    absl::StrJoin(worker.bad_blocks, " "), "], steps of ", worker.step_us, " us\n");
  for (const Fault& fault : fleet.faults)
    absl::StrAppend(&text, "fault: ", Name(fault.kind), " of worker ", fault.worker,
                    fault.phase.has_value()
                        ? absl::StrCat(", phase ", Name(*fault.phase), " number ", fault.skip)
                        : "",
                    ", after ", fault.after_us, " us, lasts ", fault.lasts_us, " us\n");
  for (const Arrival& arrival : arrivals) {
    const GenerateRequest& r = arrival.request;
    absl::StrAppend(
        &text, "at ", arrival.at_us, " us: ", r.request_id, " of \"", r.caller, "\" salt \"",
        r.cache_salt, "\"", r.batch ? ", batch" : "", ", priority ", r.priority, ", prompt ",
        r.prompt_tokens.size(), ", max_tokens ", r.max_tokens, ", min_tokens ", r.min_tokens,
        ", seed ", r.seed, r.choices > 1 ? absl::StrCat(", choices ", r.choices) : "",
        r.grammar != nullptr ? ", constrained" : "",
        r.score_from.has_value() ? absl::StrCat(", scored from ", *r.score_from) : "",
        r.resumed.empty() ? "" : absl::StrCat(", resumed after ", r.resumed.size()),
        r.pooling != internal::POOLING_NONE ? absl::StrCat(", pooling ", r.pooling) : "",
        arrival.deadline_after_us > 0
            ? absl::StrCat(", deadline ", arrival.deadline_after_us, " us")
            : "",
        arrival.cancelled_after_us.has_value()
            ? absl::StrCat(", cancelled after ", *arrival.cancelled_after_us, " us")
            : "",
        "\n");
  }
  if (drain_at_us.has_value())
    absl::StrAppend(&text, "drains at ", *drain_at_us, " us for ", *drain_for_us, " us\n");
  return text;
}

Scenario MakeScenario(uint64_t seed) { return Maker(seed).Make(); }

}  // namespace bitshard::sim
