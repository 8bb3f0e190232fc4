// Ranks as threads of the test: one collective each over one piece of plain memory, so that
// sanitizers see every access.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "worker/collective/collective.h"
#include "worker/collective/shm_collective.h"

namespace bitshard {

class ThreadRanks {
 public:
  explicit ThreadRanks(int world) {
    if (world == 1) {
      ranks_.push_back(MakeSoloCollective());
      return;
    }
    const size_t bytes = ShmView::Bytes(world);
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(kShmLine, bytes)));
    CHECK(memory_ != nullptr);
    std::memset(memory_.get(), 0, bytes);
    for (int r = 0; r < world; ++r) {
      ranks_.push_back(std::make_unique<ShmCollective>(nullptr, ShmView(memory_.get(), world), r,
                                                       [](int) { return true; }));
    }
  }

  int world() const { return static_cast<int>(ranks_.size()); }
  Collective& operator[](int rank) { return *ranks_[rank]; }

  // Runs `body(rank, collective)` on a thread a rank and waits for all.
  void Run(const std::function<void(int, Collective&)>& body) {
    std::vector<std::thread> threads;
    for (int r = 1; r < world(); ++r) threads.emplace_back([&, r] { body(r, *ranks_[r]); });
    body(0, *ranks_[0]);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  std::vector<std::unique_ptr<Collective>> ranks_;
};

}  // namespace bitshard
