// What the lanes of a warp do together. The last lane to arrive computes for all of them.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cuda/emu/checks.h"
#include "kernels/cuda/emu/count.h"
#include "kernels/cuda/emu/mma.h"
#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {
namespace {

bool IsShuffle(Collective collective) { return collective <= Collective::kShuffleDown; }

// The lane that `lane` reads from; itself where the offset leaves its segment of `width` lanes.
int SourceLane(const Thread& thread) {
  const int lane = thread.lane, width = thread.width, first = lane & ~(width - 1);
  int source = lane;
  switch (thread.collective) {
    case Collective::kShuffle:
      return first | (thread.argument & (width - 1));
    case Collective::kShuffleXor:
      source = lane ^ thread.argument;
      return source < first + width ? source : lane;
    case Collective::kShuffleUp:
      source = lane - thread.argument;
      return source >= first ? source : lane;
    default:
      source = lane + thread.argument;
      return source < first + width ? source : lane;
  }
}

void Shuffle(Thread* lanes, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Thread& thread = lanes[std::countr_zero(rest)];
    const int source = SourceLane(thread);
    if ((mask >> source & 1) == 0) {
      Report(FindingKind::kInactiveLane, thread.where,
             "lane " + std::to_string(thread.lane) + " reads lane " + std::to_string(source) +
                 ", which is not in the mask");
      thread.result = thread.value;
      continue;
    }
    thread.result = lanes[source].value;
  }
}

uint64_t Reduce(Collective collective, const Thread* lanes, uint32_t mask) {
  uint64_t ballot = 0;
  uint32_t result = static_cast<uint32_t>(lanes[std::countr_zero(mask)].value);
  bool first = true;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const uint32_t value = static_cast<uint32_t>(lanes[lane].value);
    ballot |= uint64_t{value & 1} << lane;
    const int32_t is = static_cast<int32_t>(value), was = static_cast<int32_t>(result);
    if (collective == Collective::kReduceAdd && !first) result += value;
    if (collective == Collective::kReduceMin && value < result) result = value;
    if (collective == Collective::kReduceMax && value > result) result = value;
    if (collective == Collective::kReduceMinSigned && is < was) result = value;
    if (collective == Collective::kReduceMaxSigned && is > was) result = value;
    first = false;
  }
  return collective == Collective::kBallot ? ballot : result;
}

// Five xor shuffles, every lane its own tree: the same pairs and roundings as on the device.
void FloatTree(bool sum, Thread* lanes) {
  float now[kWarpLanes], next[kWarpLanes];
  for (int i = 0; i < kWarpLanes; ++i) now[i] = FromBits<float>(lanes[i].value);
  for (int offset = 16; offset > 0; offset >>= 1) {
    for (int i = 0; i < kWarpLanes; ++i) {
      const float other = now[i ^ offset];
      next[i] = sum ? now[i] + other : fmaxf(now[i], other);
    }
    std::memcpy(now, next, sizeof(now));
  }
  for (int i = 0; i < kWarpLanes; ++i) lanes[i].result = ToBits(now[i]);
}

void LoadMatrices(bool transposed, Thread* lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    uint32_t* const registers = static_cast<uint32_t*>(lanes[lane].d);
    const int outer = lane / 4, inner = lane % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const Thread* const rows = lanes + 8 * matrix;
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = transposed ? inner + i : outer, column = transposed ? outer : inner + i;
        std::memcpy(&pair[i], static_cast<const char*>(rows[row].row) + 2 * column, 2);
      }
      registers[matrix] = uint32_t{pair[1]} << 16 | pair[0];
    }
  }
}

bool NeedsWholeWarp(Collective collective) {
  switch (collective) {
    case Collective::kSumFloat:
    case Collective::kMaxFloat:
    case Collective::kMmaF16:
    case Collective::kMmaBf16:
    case Collective::kMmaU8S8:
    case Collective::kLdMatrix:
    case Collective::kLdMatrixTrans:
      return true;
    default:
      return false;
  }
}

// False, and a finding: the lanes have come to different calls.
bool CheckAgreement(const Thread& last, const Thread* lanes, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const Thread& thread = lanes[std::countr_zero(rest)];
    if (thread.collective == last.collective && thread.mask == last.mask &&
        SamePlace(thread.where, last.where))
      continue;
    Report(FindingKind::kDivergentCollective, last.where,
           "lanes " + std::to_string(last.lane) + " and " + std::to_string(thread.lane) +
               (thread.mask != last.mask ? " meet with different masks, the other at "
                                         : " meet in different calls, the other at ") +
               PlaceOf(thread.where));
    return thread.collective == last.collective;
  }
  return true;
}

void Complete(const Thread& last, Thread* lanes, uint32_t mask) {
  const bool agreed = CheckAgreement(last, lanes, mask);
  if (agreed) {
    switch (last.collective) {
      case Collective::kShuffle:
      case Collective::kShuffleXor:
      case Collective::kShuffleUp:
      case Collective::kShuffleDown:
        Shuffle(lanes, mask);
        break;
      case Collective::kSumFloat:
      case Collective::kMaxFloat:
        FloatTree(last.collective == Collective::kSumFloat, lanes);
        break;
      case Collective::kSyncWarp:
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
          ++lanes[std::countr_zero(rest)].warp_epoch;
        break;
      case Collective::kMmaF16:
        MultiplyF16(lanes);
        break;
      case Collective::kMmaBf16:
        MultiplyBf16(lanes);
        break;
      case Collective::kMmaU8S8:
        MultiplyBytes(lanes);
        break;
      case Collective::kLdMatrix:
      case Collective::kLdMatrixTrans:
        LoadMatrices(last.collective == Collective::kLdMatrixTrans, lanes);
        break;
      default: {
        const uint64_t result = Reduce(last.collective, lanes, mask);
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
          lanes[std::countr_zero(rest)].result = result;
      }
    }
  }
  CountMeeting(last.warp, last.collective);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) MakeReady(&lanes[std::countr_zero(rest)]);
}

void Arrive(Thread* self, Collective collective, uint32_t mask, const Where& where) {
  Warp& warp = launch.warp_state[self->warp];
  const uint32_t own = 1u << self->lane;
  self->collective = collective;
  self->where = where;
  if ((mask & own) == 0) {
    Report(FindingKind::kWrongMask, where,
           "lane " + std::to_string(self->lane) + " is not in the mask that it gives");
    mask |= own;
  }
  if (NeedsWholeWarp(collective) && warp.lanes != ~0u) {
    Report(FindingKind::kWrongMask, where, "the whole warp is needed and the block's last is not");
    return;
  }
  self->mask = mask;
  self->state = ThreadState::kInWarp;
  warp.ready &= ~own;
  warp.meeting |= own;
  const uint32_t expected = mask & warp.lanes;
  if ((warp.meeting & expected) != expected) {
    WaitForTurn();
    return;
  }
  Complete(*self, launch.thread + self->warp * kWarpLanes, expected);
}

}  // namespace

uint64_t Meet(Collective collective, unsigned mask, uint64_t value, int argument, int width,
              const Where& where) {
  Thread* const self = running;
  self->value = self->result = value;
  self->argument = argument;
  self->width = width;
  if (IsShuffle(collective) && (width < 1 || width > kWarpLanes || (width & (width - 1)) != 0)) {
    Report(FindingKind::kBadArgument, where, "a shuffle of width " + std::to_string(width));
    self->width = kWarpLanes;
  }
  Arrive(self, collective, mask, where);
  return self->result;
}

void Mma(Collective collective, void* d, const uint32_t* a, const uint32_t* b, const Where& where) {
  Thread* const self = running;
  self->a = a;
  self->b = b;
  self->d = d;
  Arrive(self, collective, ~0u, where);
}

void LdMatrix(Collective collective, uint32_t* registers, const void* row, const Where& where) {
  Thread* const self = running;
  self->d = registers;
  self->row = row;
  CheckAccess(row, 16, AccessKind::kRead, __builtin_return_address(0));
  if ((reinterpret_cast<uintptr_t>(row) & 15) != 0)
    Report(FindingKind::kMisaligned, where, "a row of ldmatrix is not aligned to 16 bytes");
  if (!IsSharedAddress(row, 16)) {
    Report(FindingKind::kOutOfBounds, where, "a row of ldmatrix is not in shared memory");
    return;
  }
  Arrive(self, collective, ~0u, where);
}

}  // namespace bitshard::emu
