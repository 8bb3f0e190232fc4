// Ranks on GPUs over NCCL for tests: the real nccl.cc and device_cuda.cc on fakes of NCCL and of
// the CUDA runtime, as processes and as threads (each with a device of its own).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/file_rendezvous.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/unique_id.h"
#include "worker/collective/device_collective.h"

namespace bitshard {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

inline std::string NewId() { return UniqueId("nccl"); }

// Until all ranks have come here, without the collective.
inline absl::Status MeetIn(const std::string& place, int rank, int world) {
  return FileRendezvous(place, rank, world)("here").status();
}

// One rank, on device `rank` of the fake machine.
struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceStream> stream;
  std::unique_ptr<DeviceEvent> event;
  DeviceBuffer window;  // of tests that open one
  std::unique_ptr<DeviceCollective> collective;

  DeviceCollective& operator*() const { return *collective; }
  int rank() const { return collective->rank(); }
  int world() const { return collective->world(); }

  absl::Status Await() const {
    RETURN_IF_ERROR(device->Record(*event, *stream));
    return collective->Await(*event);
  }
};

struct Plan {
  std::string id;
  int rank = 0, world = 1;
  absl::Duration operation_timeout = kPatience;
  uint64_t epoch = 1;
};

inline absl::StatusOr<std::unique_ptr<DeviceCollective>> Meet(const Plan& plan, Device& device) {
  DeviceGroup group;
  group.id = plan.id;
  group.epoch = plan.epoch;
  group.rank = plan.rank;
  group.world = plan.world;
  group.tell = FileRendezvous(plan.id, plan.rank, plan.world);
  group.device = &device;
  group.operation_timeout = plan.operation_timeout;
  return JoinDeviceCollective("nccl", group, kPatience);
}

inline absl::StatusOr<Rank> Join(const Plan& plan) {
  Rank rank;
  ASSIGN_OR_RETURN(rank.device, OpenDevice("cuda", plan.rank));
  ASSIGN_OR_RETURN(rank.stream, rank.device->NewStream());
  ASSIGN_OR_RETURN(rank.event, rank.device->NewEvent());
  ASSIGN_OR_RETURN(rank.collective, Meet(plan, *rank.device));
  return rank;
}

// An empty text is success.
using Body = std::function<std::string(Rank&)>;

inline std::string JoinAndRun(const Plan& plan, const Body& body) {
  absl::StatusOr<Rank> rank = Join(plan);
  return rank.ok() ? body(*rank) : rank.status().ToString();
}

inline std::string Text(const absl::Status& status) { return status.ok() ? "" : status.ToString(); }

#define RETURN_IF_ERROR_TEXT(expression)             \
  do {                                               \
    const std::string error_text = Text(expression); \
    if (!error_text.empty()) return error_text;      \
  } while (false)

// TSan ends a child that was forked beside other threads than its own one: first those of the
// fake's streams are waited for, which go by themselves.
inline ForkedRanks Fork(int world, const std::function<std::string(int)>& body) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  for (int i = 0; i < 1000 && threads() > 2; ++i) absl::SleepFor(absl::Milliseconds(1));
  return ForkedRanks(0, world, body);
}

// What each rank says. `Plan::rank` is filled in.
inline std::vector<std::string> RunProcesses(Plan plan, const Body& body) {
  ForkedRanks ranks = Fork(plan.world, [&](int rank) {
    const fake::ScopedCudaMachine machine({.devices = plan.world});
    plan.rank = rank;
    return JoinAndRun(plan, body);
  });
  std::vector<std::string> said(plan.world);
  for (int r = 0; r < plan.world; ++r) said[r] = ranks.Wait(r);
  return said;
}

inline std::vector<std::string> RunThreads(const Plan& plan, const Body& body) {
  const fake::ScopedCudaMachine machine({.devices = plan.world});
  std::vector<std::string> said(plan.world);
  std::vector<std::thread> threads;
  for (int r = 0; r < plan.world; ++r) {
    threads.emplace_back([&, r] {
      Plan mine = plan;
      mine.rank = r;
      said[r] = JoinAndRun(mine, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

// In 2, 3 and 4 ranks, as processes and as threads.
inline void EveryWay(const Body& body) {
  for (int world = 2; world <= 4; ++world) {
    const std::vector<std::string> good(world);
    EXPECT_EQ(RunProcesses({.id = NewId(), .world = world}, body), good) << world << " processes";
    EXPECT_EQ(RunThreads({.id = NewId(), .world = world}, body), good) << world << " threads";
  }
}

// On the device, for the length of a test's body.
template <typename T>
class ValuesOf {
 public:
  ValuesOf(const Rank& rank, const std::vector<T>& values)
      : rank_(rank), data_(*rank.device->Alloc(values.size() * sizeof(T))) {
    std::vector<T> copy = values;
    CHECK(rank.device->Copy(data(), copy.data(), data_.bytes(), *rank.stream).ok());
    CHECK(rank.device->Sync(*rank.stream).ok());
  }
  T* data() const { return data_.as<T>(); }
  size_t count() const { return data_.bytes() / sizeof(T); }
  // After a wait.
  std::vector<T> Back() const {
    std::vector<T> values(count());
    CHECK(rank_.device->Copy(values.data(), data(), data_.bytes(), *rank_.stream).ok());
    CHECK(rank_.device->Sync(*rank_.stream).ok());
    return values;
  }

 private:
  const Rank& rank_;
  DeviceBuffer data_;
};
using Values = ValuesOf<int64_t>;

}  // namespace bitshard
