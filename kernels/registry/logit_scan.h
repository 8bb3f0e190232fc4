// What a device is asked about rows of logits, and what it answers, so that the sampler
// (worker/sample) needs the rows themselves but seldom. Plain structs: host code fills them, CUDA's
// kernels get them as they are.
//
// The order of tokens is that of the sampler: by logit descending, then by id ascending, minus zero
// as zero. A key is one token's place in it: order-preserving bits of the logit << 32 | ~id
// (worker/sample/token_order.h).
#pragma once

#include <cstdint>

namespace bitshard {

// Most candidates that may be asked for.
inline constexpr uint32_t kMaxScanCandidates = 128;
inline constexpr uint32_t kNoScanToken = 0xffffffffu;

struct LogitScanRequest {
  uint32_t candidates = 0;  // how many of the first tokens of the order
  uint32_t draws = 0;       // 1: the token with the largest logit / temperature + noise is wanted
  // Of the draw; noise as worker/sample/gumbel.h defines it.
  float temperature = 1;  // > 0, finite
  uint32_t choice = 0;
  uint64_t seed = 0, position = 0;
};
static_assert(sizeof(LogitScanRequest) == 32);

struct LogitScan {
  float max = 0;
  uint32_t token = kNoScanToken;  // the lowest with the maximum
  uint32_t bad = 0;               // 1: some logit is not finite; nothing else has a meaning then
  uint32_t n_candidates = 0;      // as asked, or all tokens there are
  double draw_score = 0;          // with `draws`; lowest id among equal scores
  float draw_logit = 0;
  uint32_t draw_token = kNoScanToken;
};
static_assert(sizeof(LogitScan) == 32);

// Sums over the row as worker/sample/row_scan.h defines them, for a maximum that all ranks know.
struct LogitSumRequest {
  uint32_t raw = 0;   // 1: RawSum is wanted
  uint32_t mass = 0;  // 1: MassSum is wanted, with the temperature and the floor
  float max = 0;
  float temperature = 1;
  float floor = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(LogitSumRequest) == 24);

struct LogitSums {
  int64_t raw = 0, mass = 0;
};

// DeviceKernels::Scan and SumMasses: rows [0, m), r at logits + r * stride, of tokens [begin, begin
// + count). Pointers are the device's. The bits are those of worker/sample/row_scan.h.
inline constexpr int64_t kMaxScanRows = 65535;

struct DeviceScan {
  const float* logits = nullptr;
  int64_t stride = 0, m = 0, count = 0;
  uint32_t begin = 0;                          // a multiple of 64
  uint32_t most = 0;                           // no row asks for more candidates
  const LogitScanRequest* requests = nullptr;  // [m]
  void* scratch = nullptr;                     // ScanScratchBytes, as it comes
  LogitScan* scans = nullptr;                  // [m]
  uint64_t* keys = nullptr;  // [m][most]: the candidates; behind a row's last as it was
};

struct DeviceMassSums {
  const float* logits = nullptr;
  int64_t stride = 0, m = 0, count = 0;
  const LogitSumRequest* requests = nullptr;  // [m]
  LogitSums* sums = nullptr;                  // [m]; were set to 0 before
};

}  // namespace bitshard
