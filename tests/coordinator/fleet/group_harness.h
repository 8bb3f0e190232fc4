// A Group under a virtual clock with scripted workers: what the tests of the fleet's state machine
// have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "coordinator/fleet/group.h"
#include "kernels/base/log.h"

namespace bitshard {

class GroupHarness : public GroupOutput {
 public:
  static GroupOptions DefaultOptions(uint32_t world) {
    GroupOptions options;
    options.world = world;
    options.token = "secret";
    options.build = "1.0";
    options.instance = "test";
    options.numerics.set_block_tokens(16);
    options.numerics.set_max_slots(8);
    options.numerics.set_max_step_tokens(64);
    options.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_F32);
    options.build_plans = [world](const std::vector<double>&) { return Plans(world); };
    return options;
  }

  static std::vector<internal::RankPlan> Plans(uint32_t world) {
    std::vector<internal::RankPlan> plans(world);
    for (uint32_t rank = 0; rank < world; ++rank) {
      plans[rank].set_rank(rank);
      plans[rank].set_world(world);
      plans[rank].set_digest(absl::StrCat("digest-", rank));
      plans[rank].mutable_graph()->add_nodes()->mutable_rms_norm();
      internal::Attention& attention =
          *plans[rank].mutable_graph()->add_nodes()->mutable_attention();
      attention.set_kv_heads(1);
      attention.set_head_dim(8);
    }
    return plans;
  }

  explicit GroupHarness(uint32_t world) : GroupHarness(DefaultOptions(world)) {}
  explicit GroupHarness(GroupOptions options) : group(std::move(options), this) {
    InitLogging("test", "error");
  }

  // GroupOutput: what came out, as text and whole.
  void Send(absl::Span<const ConnectionId> to,
            const internal::CoordinatorMessage& message) override {
    for (const ConnectionId connection : to) sent[connection].push_back(message);
  }
  void Close(ConnectionId connection, const absl::Status& why) override {
    closed[connection] = why;
  }
  void OnGroupReady(const GroupInfo& info) override {
    infos.push_back(info);
    events.push_back(absl::StrCat("ready ", info.term, "/", info.epoch));
  }
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override {
    events.push_back(absl::StrCat("step ", result->step(), " of rank ", result->rank()));
  }
  void OnStepMoved() override { ++moves; }
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override {
    events.push_back(absl::StrCat("lost ", term, "/", epoch));
    losses.push_back(why);
  }
  void OnHopeless(const absl::Status& why) override { hopeless.push_back(why); }

  static internal::Register Registration(int number) {
    internal::Register registration;
    registration.set_token("secret");
    registration.set_instance(absl::StrCat("process-", number));
    registration.set_protocol_min(1);
    registration.set_protocol_max(1);
    registration.set_build("1.0");
    registration.set_device("cpu");
    registration.set_isa("scalar");
    registration.set_numerics_digest("same");
    registration.add_ops("rms_norm");
    registration.add_ops("attention");
    registration.set_host("host");
    registration.set_pid(100 + number);
    return registration;
  }

  void Receive(ConnectionId connection, const std::function<void(internal::WorkerMessage&)>& fill) {
    auto message = std::make_unique<internal::WorkerMessage>();
    fill(*message);
    group.Received(connection, std::move(message), now);
  }
  void Connect(ConnectionId connection) { group.Connected(connection, now); }
  void Register(ConnectionId connection, const internal::Register& registration) {
    Receive(connection, [&](auto& m) { *m.mutable_registration() = registration; });
  }
  void Join(ConnectionId connection, int number) {
    Connect(connection);
    Register(connection, Registration(number));
  }
  void Loaded(ConnectionId connection, uint64_t blocks = 100) {
    Receive(connection, [&](auto& m) { m.mutable_loaded()->set_max_cache_blocks(blocks); });
  }
  void Rendezvous(ConnectionId connection, const std::string& data, uint64_t epoch = 0) {
    Receive(connection, [&](auto& m) {
      m.mutable_rendezvous()->set_epoch(epoch == 0 ? Epoch() : epoch);
      m.mutable_rendezvous()->set_data(data);
    });
  }
  void Joined(ConnectionId connection) {
    Receive(connection, [&](auto& m) { m.mutable_joined()->set_epoch(Epoch()); });
  }
  void Ready(ConnectionId connection) {
    Receive(connection, [&](auto& m) { m.mutable_ready()->set_epoch(Epoch()); });
  }
  void Quiesced(ConnectionId connection, bool intact = true) {
    Receive(connection, [&](auto& m) {
      m.mutable_quiesced()->set_epoch(Epoch());
      m.mutable_quiesced()->set_weights_intact(intact);
    });
  }
  void Fail(ConnectionId connection, absl::StatusCode code, uint64_t epoch,
            const std::string& text) {
    Receive(connection, [&](auto& m) {
      m.mutable_failure()->set_code(static_cast<uint32_t>(code));
      m.mutable_failure()->set_epoch(epoch);
      m.mutable_failure()->set_message(text);
    });
  }
  void Heartbeat(ConnectionId connection, uint64_t step, uint64_t op, bool busy) {
    Receive(connection, [&](auto& m) {
      m.mutable_heartbeat()->set_epoch(Epoch());
      m.mutable_heartbeat()->set_step(step);
      m.mutable_heartbeat()->set_op(op);
      m.mutable_heartbeat()->set_busy(busy);
    });
  }
  void Result(ConnectionId connection, uint32_t rank, uint64_t step) {
    Receive(connection, [&](auto& m) {
      internal::StepResult& result = *m.mutable_step_result();
      result.set_term(infos.back().term);
      result.set_epoch(infos.back().epoch);
      result.set_step(step);
      result.set_rank(rank);
    });
  }
  void Submit(uint64_t step) {
    auto plan = std::make_unique<internal::StepPlan>();
    plan->set_term(infos.back().term);
    plan->set_epoch(infos.back().epoch);
    plan->set_step(step);
    group.SubmitPlan(std::move(plan), now);
  }

  // Connections 1 .. world become ranks 0 .. world-1.
  void BringUp(uint32_t world) {
    for (uint32_t i = 1; i <= world; ++i) Join(i, i);
    BringUpFromLoading(Range(world));
  }
  void BringUpFromLoading(const std::vector<ConnectionId>& connections) {
    for (const ConnectionId c : connections) Loaded(c);
    for (const ConnectionId c : connections) Joined(c);
    for (const ConnectionId c : connections) Ready(c);
  }
  static std::vector<ConnectionId> Range(uint32_t world) {
    std::vector<ConnectionId> connections;
    for (uint32_t i = 1; i <= world; ++i) connections.push_back(i);
    return connections;
  }

  // Time passes in ticks of 50 ms; workers in `alive` send a heartbeat of unchanged content each
  // tick.
  void Pass(absl::Duration time, const std::vector<ConnectionId>& alive) {
    const absl::Time end = now + time;
    while (now < end) {
      now += absl::Milliseconds(50);
      for (const ConnectionId c : alive) {
        Receive(c, [](auto& m) { m.mutable_heartbeat(); });  // of no epoch: alive, and no more
      }
      group.Tick(now);
    }
  }

  uint64_t Epoch() const { return group.Snapshot(now).epoch; }
  // Messages of one kind that a connection got.
  int Count(ConnectionId connection, internal::CoordinatorMessage::BodyCase kind) const {
    const auto it = sent.find(connection);
    int count = 0;
    if (it != sent.end()) {
      for (const auto& message : it->second) count += message.body_case() == kind;
    }
    return count;
  }
  const internal::Assign* LastAssign(ConnectionId connection) const {
    const auto it = sent.find(connection);
    if (it == sent.end()) return nullptr;
    for (auto message = it->second.rbegin(); message != it->second.rend(); ++message) {
      if (message->has_assign()) return &message->assign();
    }
    return nullptr;
  }

  absl::Time now = absl::FromUnixSeconds(1'000'000);
  std::map<ConnectionId, std::vector<internal::CoordinatorMessage>> sent;
  std::map<ConnectionId, absl::Status> closed;
  std::vector<std::string> events;
  std::vector<absl::Status> losses;
  std::vector<absl::Status> hopeless;
  std::vector<GroupInfo> infos;
  int moves = 0;  // OnStepMoved
  Group group;
};

}  // namespace bitshard
