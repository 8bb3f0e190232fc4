#include "kernels/cuda/emu/counters.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kernels/cuda/emu/arena.h"
#include "kernels/cuda/emu/count.h"
#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {
namespace {

constexpr size_t kSectorBytes = 32;
constexpr int kBanks = 32;
constexpr int kBankBytes = 4;

// What the lanes of a warp did in their n-th execution of one instruction.
struct Group {
  uint32_t lanes = 0;
  uint32_t at[kWarpLanes];  // offsets
};

struct Pending {
  std::vector<Group> groups;
  size_t used = 0;
  uint32_t executions[kWarpLanes] = {};
};

// One instruction, in one kind of memory.
struct Site {
  const void* pc;
  bool shared;
  bool write;
  int bytes;
  AccessCounters access;
  Pending pending[kMaxWarps];
};

struct SiteKey {
  const void* pc;
  bool shared;
  bool operator==(const SiteKey&) const = default;
};
struct SiteHash {
  size_t operator()(const SiteKey& key) const {
    return std::hash<const void*>()(key.pc) * 2 + key.shared;
  }
};

// The last block, and the last counting period, that touched a sector.
struct SectorMark {
  uint32_t block;
  uint32_t period;
};

Counters counters;
uint32_t period = 1;
std::unordered_map<SiteKey, std::unique_ptr<Site>, SiteHash> sites;
std::vector<Site*> touched[kMaxWarps];
// The sites of the instructions that ran lately, by some bits of their addresses.
Site* recent[1024];

SectorMark* SectorMarks() {
  static SectorMark* const marks = static_cast<SectorMark*>(
      ReserveAddresses(Arena().bytes / kSectorBytes * sizeof(SectorMark), "the sectors' marks"));
  return marks;
}

Site* FindSite(const void* pc, bool shared) {
  const size_t slot = (reinterpret_cast<uintptr_t>(pc) * 2 + shared) % std::size(recent);
  Site*& cached = recent[slot];
  if (cached != nullptr && cached->pc == pc && cached->shared == shared) return cached;
  std::unique_ptr<Site>& site = sites[{pc, shared}];
  if (site == nullptr) {
    site = std::make_unique<Site>();
    site->pc = pc;
    site->shared = shared;
  }
  cached = site.get();
  return cached;
}

// Of the lanes' accesses: the most different words in one bank, summed over the phases.
void AddBankWaves(const Group& group, int bytes, AccessCounters* access) {
  const int lanes_a_phase = bytes >= 16 ? 8 : bytes == 8 ? 16 : kWarpLanes;
  for (int first = 0; first < kWarpLanes; first += lanes_a_phase) {
    uint32_t words[kBanks][kWarpLanes];
    int count[kBanks] = {};
    int waves = 0;
    for (int lane = first; lane < first + lanes_a_phase; ++lane) {
      if ((group.lanes >> lane & 1) == 0) continue;
      const uint32_t at = group.at[lane];
      const uint32_t last = (at + static_cast<uint32_t>(bytes) - 1) / kBankBytes;
      for (uint32_t word = at / kBankBytes; word <= last; ++word) {
        const uint32_t bank = word % kBanks;
        uint32_t* const known = words[bank];
        if (std::find(known, known + count[bank], word) != known + count[bank]) continue;
        if (count[bank] < kWarpLanes) known[count[bank]++] = word;
        waves = std::max(waves, count[bank]);
      }
    }
    access->done += static_cast<uint64_t>(waves);
    access->ideal += waves > 0;
  }
}

void AddSectors(const Group& group, int bytes, AccessCounters* access) {
  // Kept, so that counting does not allocate.
  static std::vector<uint32_t> sectors, starts;
  sectors.clear();
  starts.clear();
  for (uint32_t rest = group.lanes; rest != 0; rest &= rest - 1) {
    const uint32_t at = group.at[std::countr_zero(rest)];
    const uint32_t last = (at + static_cast<uint32_t>(bytes) - 1) / kSectorBytes;
    starts.push_back(at);
    for (uint32_t sector = at / kSectorBytes; sector <= last; ++sector) sectors.push_back(sector);
  }
  const auto unique = [](std::vector<uint32_t>* v) {
    std::sort(v->begin(), v->end());
    return static_cast<uint64_t>(std::unique(v->begin(), v->end()) - v->begin());
  };
  access->done += unique(&sectors);
  access->ideal +=
      (unique(&starts) * static_cast<uint64_t>(bytes) + kSectorBytes - 1) / kSectorBytes;
}

void Add(const AccessCounters& more, AccessCounters* to) {
  to->warp_instructions += more.warp_instructions;
  to->lanes += more.lanes;
  to->done += more.done;
  to->ideal += more.ideal;
}

void MatchAccesses(int warp) {
  for (Site* const site : touched[warp]) {
    Pending& pending = site->pending[warp];
    AccessCounters more;
    for (size_t i = 0; i < pending.used; ++i) {
      const Group& group = pending.groups[i];
      ++more.warp_instructions;
      more.lanes += static_cast<uint64_t>(std::popcount(group.lanes));
      if (site->shared) {
        AddBankWaves(group, site->bytes, &more);
      } else {
        AddSectors(group, site->bytes, &more);
      }
    }
    Add(more, &site->access);
    Add(more, site->shared ? &counters.shared : &counters.global);
    if (!site->shared && site->write) Add(more, &counters.global_writes);
    if (!site->shared) counters.requested_bytes += more.done * kSectorBytes;
    pending.used = 0;
    std::fill(std::begin(pending.executions), std::end(pending.executions), 0u);
  }
  touched[warp].clear();
}

bool IsShuffleOrReduction(Collective collective) {
  return collective <= Collective::kReduceMaxSigned && collective != Collective::kBallot;
}

}  // namespace

void CountLaunch() { ++counters.launches; }

void CountBarrier() {
  ++counters.barriers;
  for (int warp = 0; warp < launch.warps; ++warp) MatchAccesses(warp);
}

void CountMeeting(int warp, Collective collective) {
  if (IsShuffleOrReduction(collective)) ++counters.shuffles;
  if (collective == Collective::kSumFloat || collective == Collective::kMaxFloat)
    counters.shuffles += 5;
  if (collective >= Collective::kMmaF16 && collective <= Collective::kMmaU8S8) ++counters.mma;
  MatchAccesses(warp);
}

void EndBlockCounts() {
  ++counters.blocks;
  for (int warp = 0; warp < launch.warps; ++warp) MatchAccesses(warp);
}

void CountAccess(bool shared, bool write, size_t offset, int bytes, const void* pc) {
  if (!shared) {
    SectorMark* const marks = SectorMarks();
    const uint32_t block = static_cast<uint32_t>(launch.block_serial);
    for (size_t sector = offset / kSectorBytes;
         sector <= (offset + static_cast<size_t>(bytes) - 1) / kSectorBytes; ++sector) {
      if (marks[sector].block != block) counters.block_unique_bytes += kSectorBytes;
      if (marks[sector].period != period) counters.unique_bytes += kSectorBytes;
      marks[sector] = {block, period};
    }
  }
  Site* const site = FindSite(pc, shared);
  site->write = write;
  site->bytes = bytes;
  Pending& pending = site->pending[running->warp];
  if (pending.used == 0) touched[running->warp].push_back(site);
  const uint32_t execution = pending.executions[running->lane]++;
  if (execution >= pending.groups.size()) pending.groups.emplace_back();
  if (execution >= pending.used) {
    pending.used = execution + 1;
    pending.groups[execution].lanes = 0;
  }
  Group& group = pending.groups[execution];
  group.lanes |= 1u << running->lane;
  group.at[running->lane] = static_cast<uint32_t>(offset);
}

Counters GetCounters() {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  return counters;
}

std::vector<PlaceCounters> CountersByPlace() {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  std::vector<PlaceCounters> places;
  for (const auto& [key, site] : sites) {
    if (site->access.warp_instructions == 0) continue;
    places.push_back({.place = PlaceOf(site->pc),
                      .shared = site->shared,
                      .write = site->write,
                      .bytes = site->bytes,
                      .access = site->access});
  }
  const auto excess = [](const PlaceCounters& p) { return p.access.done - p.access.ideal; };
  std::sort(places.begin(), places.end(), [&](const PlaceCounters& a, const PlaceCounters& b) {
    return excess(a) != excess(b) ? excess(a) > excess(b) : a.place < b.place;
  });
  return places;
}

void ResetCounters() {
  const std::lock_guard<std::mutex> lock(LaunchLock());
  counters = {};
  ++period;
  for (const auto& [key, site] : sites) site->access = {};
}

std::string CountersText() {
  const Counters c = GetCounters();
  char line[512];
  std::snprintf(
      line, sizeof(line),
      "launches %llu, blocks %llu, barriers %llu, shuffles %llu, mma %llu; global: %llu "
      "sectors for %llu (%.2f), MB %.3f requested, %.3f unique by block, %.3f unique; "
      "shared: %llu waves for %llu (%.2f)\n",
      static_cast<unsigned long long>(c.launches), static_cast<unsigned long long>(c.blocks),
      static_cast<unsigned long long>(c.barriers), static_cast<unsigned long long>(c.shuffles),
      static_cast<unsigned long long>(c.mma), static_cast<unsigned long long>(c.global.done),
      static_cast<unsigned long long>(c.global.ideal), c.global.Efficiency(),
      c.requested_bytes / 1e6, c.block_unique_bytes / 1e6, c.unique_bytes / 1e6,
      static_cast<unsigned long long>(c.shared.done),
      static_cast<unsigned long long>(c.shared.ideal), c.shared.Efficiency());
  std::string text = line;
  for (const PlaceCounters& p : CountersByPlace()) {
    std::snprintf(line, sizeof(line), "  %s %s %d bytes at %s: %llu %s for %llu (%.2f)\n",
                  p.shared ? "shared" : "global", p.write ? "write" : "read", p.bytes,
                  p.place.c_str(), static_cast<unsigned long long>(p.access.done),
                  p.shared ? "waves" : "sectors", static_cast<unsigned long long>(p.access.ideal),
                  p.access.Efficiency());
    text += line;
  }
  return text;
}

}  // namespace bitshard::emu
