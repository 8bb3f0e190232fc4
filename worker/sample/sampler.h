// Logits to tokens, with the vocabulary sharded over the ranks, exact: the result is that of one
// rank with all logits, bit for bit, however the vocabulary is cut.
//
// Each rank holds logits of tokens [vocab_begin, vocab_begin + local_vocab), vocab_begin a multiple
// of 64. Order: edits (logit_edits.h), temperature, min-p (probability relative to the largest),
// top-k, top-p (of what is left, renormalised), draw. The kept tokens are a prefix of (logit
// descending, id ascending); what lies in it is decided by integers (mass.h). The draw is the
// largest logit / temperature + Gumbel noise (gumbel.h). Log-probabilities are of the raw logits.
//
// A row without edits is sampled where it lies. Of a row with edits a copy is edited; there is room
// for kEditedRows of them, more are sampled in turns. Where a device has looked through the rows
// (row_source.h), the numbers of its scan stand for the row's, bit by bit; rows whose kept tokens
// reach beyond the first candidates are fetched.
//
// Collectives of a turn, the same on all ranks because all decide from the same numbers:
// - 1 all-gather, always: maximum, best token, first candidates of every row;
// - 1 all-reduce if a row wants log-probabilities, has a target (it carries the bits of its logit,
//   to which all ranks but the owner add zero) or top-p over an open-ended set;
// - 3 or 6 all-reduces (boundary_search.h) for each 8 rows, rare, if the first kCandidates do not
//   contain what is kept;
// - 1 all-gather with these, or when min-p alone keeps more than the candidates;
// - 1 all-reduce if a row with edits wants log-probabilities: the raw logits of the drawn tokens.
//
// One thread (and its pool). Bind allocates, Sample does not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "worker/collective/collective.h"
#include "worker/sample/boundary_search.h"
#include "worker/sample/logit_edits.h"
#include "worker/sample/params.h"
#include "worker/sample/row_scan.h"
#include "worker/sample/row_source.h"

namespace bitshard {

struct SampleRow {
  SampleParams params;
  uint64_t position = 0;  // absolute position of the token that is drawn
  // Nothing is drawn: this token is the output, with its log-probability and the alternatives. The
  // other params do not count then.
  std::optional<uint32_t> target = {};  // below vocab_size
  // Null: the logits are taken as they are. Not with a target.
  const LogitEdits* edits = nullptr;
};

struct SampleOutput {
  struct TopLogprob {
    uint32_t token = kNoToken;
    float logprob = 0;
  };

  // Some logit of a real token is a NaN or an infinity: then there is no token (kNoToken) and
  // nothing else is set.
  bool non_finite = false;
  // The row's masks allow no token: there is none, and nothing else is set.
  bool none_allowed = false;
  uint32_t token = kNoToken;
  float logprob = 0;  // with want_logprob, top_logprobs or a target
  // By logit descending, id ascending; params.top_logprobs of them, fewer if the vocabulary has
  // fewer.
  int n_top = 0;
  std::array<TopLogprob, kMaxTopLogprobs> top;
};

class Sampler {
 public:
  struct Options {
    uint32_t vocab_size = 0;  // of the whole model: ids at and above it are padding, never drawn
    uint32_t vocab_begin = 0;
    uint32_t local_vocab = 0;  // padding included; may be 0
    int max_outputs = 1;       // most rows of a call
    int world = 1;
    Isa isa = Isa::kScalar;      // which exp runs; the bits are the same with all
    ThreadPool* pool = nullptr;  // shares out rows; outlives the sampler
    // [EditedRows(max_outputs), local_vocab] to work in, outlives the sampler. Null: its own.
    float* edited = nullptr;
  };
  // How many candidates a rank sends for a row, most.
  static constexpr int kCandidates = 128;
  // How many rows with edits are sampled in one turn.
  static constexpr int EditedRows(int max_outputs) {
    return max_outputs < kEditedRows ? max_outputs : kEditedRows;
  }

  // Local tokens that are no padding.
  static size_t LocalCount(const Options& options);
  // What a device that looks through such a row is asked. REQUIRES: not NeedsWholeRow.
  static LogitScanRequest ScanRequestOf(const SampleRow& row, uint32_t vocab_size);
  // No scan serves it.
  static bool NeedsWholeRow(const SampleRow& row) { return row.edits != nullptr; }
  // Where the row's target is among the rank's tokens; none if another rank holds it, or there is
  // none.
  static std::optional<size_t> LocalTarget(const SampleRow& row, const Options& options);

  // INVALID_ARGUMENT when the shard is not a sensible part of the vocabulary.
  static absl::StatusOr<std::unique_ptr<Sampler>> Bind(const Options& options);

  // logits: [rows.size(), local_vocab]. On all ranks the same rows; afterwards the same outputs.
  // INTERNAL when the ranks' numbers contradict each other; the collective's own errors as they
  // are.
  absl::Status Sample(absl::Span<const float> logits, absl::Span<const SampleRow> rows,
                      Collective& collective, absl::Span<SampleOutput> out);
  // The same with the logits at `source`, whose errors come back as they are.
  absl::Status Sample(RowSource& source, absl::Span<const SampleRow> rows, Collective& collective,
                      absl::Span<SampleOutput> out);

 private:
  static constexpr int kEditedRows = 16;
  static_assert(kCandidates == kMaxScanCandidates && kNoToken == kNoScanToken);
  // How many merged candidates are kept of a row, most: more than a rank's list, because the lists
  // interleave.
  static constexpr size_t kMerged = 256;
  static constexpr int kMaxWorld = 64;

  // What the ranks tell each other of a row first.
  struct Header {
    float max;
    uint32_t token;  // the lowest with the maximum; none if all are masked
    uint32_t bad;
    uint32_t n_candidates;
    Draw draw;  // of the whole row, when nothing is filtered
    float raw_max;
    uint32_t n_raw;  // candidates of the raw logits
  };
  static_assert(sizeof(Header) == 40);
  static constexpr size_t kHeaderWords = 5;

  // A row's candidates: how many a rank sends at most, and where, in keys.
  struct Lists {
    size_t most = 0, at = 0;
  };

  enum class Filter { kGreedy, kNone, kPrefix };

  // One row on its way. First what follows from its parameters, then what all ranks have learnt.
  struct RowState {
    Filter filter;
    float temperature, top_p, floor;  // floor: of the exponent, by min-p
    uint32_t top_k;                   // 0 = all
    bool wants_raw_sum;
    std::optional<size_t> edited;  // its place among the edited rows
    Lists candidates;
    Lists raw_candidates;               // of an edited row; of others the candidates serve
    std::optional<ScannedRow> scanned;  // by a device
    bool is_here;                       // in the host's memory

    bool done;        // bad, or the winner is known
    bool draw_later;  // the kept tokens are known only as a rule, each rank draws among its own
    bool wants_mass;
    float max, raw_max;
    absl::Span<const uint64_t> merged;      // the first tokens of the order over all ranks, certain
    absl::Span<const uint64_t> raw_merged;  // the same of the raw logits, for top_logprobs
    size_t above_floor;                     // how many of them min-p keeps
    bool all_merged;                        // there is no other token
    int64_t raw_sum, mass;
    int64_t target;  // of mass
    Kept kept;
    Draw winner;
  };

  explicit Sampler(const Options& options);

  // One turn, over the source's rows from first_ on.
  absl::Status Run(absl::Span<const SampleRow> rows, Collective& collective,
                   absl::Span<SampleOutput> out);
  // What follows from the parameters; without places and scans.
  static RowState StateOf(const SampleRow& row, uint32_t vocab_size);
  void Plan(absl::Span<const SampleRow> rows);
  // Rows that no device has scanned are fetched here.
  absl::Status ScanLocal(absl::Span<const SampleRow> rows);
  Header ScanRow(size_t row, const SampleRow& params, int thread);
  // The scan of a row on a device in place of ScanRow.
  Header TakeScan(size_t row);
  // Fetches the rows that are not here yet and are wanted so.
  absl::Status BringHere(absl::FunctionRef<bool(const RowState&)> wanted);
  absl::Status Merge(size_t row, const SampleRow& params, SampleOutput& out);
  // Merges the ranks' lists as far as it is certain into `merged`; returns how many. `open`: ranks
  // may have more.
  absl::StatusOr<size_t> MergeLists(size_t row, bool raw, absl::Span<uint64_t> merged, bool* open);
  void DecidePrefix(size_t row, const NoiseKey& noise);
  void DrawPrefix(RowState& state, size_t length, const NoiseKey& noise);
  // Ends the row if its top-p prefix lies inside the certain candidates.
  bool TryTopP(RowState& state, size_t most, const NoiseKey& noise);
  static int64_t TopPTarget(float top_p, int64_t mass);
  static NoiseKey NoiseOf(const SampleRow& row) {
    return {.seed = row.params.seed, .position = row.position, .choice = row.params.choice};
  }
  absl::Status SumOnDevice();
  absl::Status ReduceSums(absl::Span<const SampleRow> rows, Collective& collective);
  absl::Status Search(absl::Span<const SampleRow> rows, Collective& collective);
  absl::Status DrawLater(absl::Span<const SampleRow> rows, Collective& collective);
  // The drawn tokens' raw logits, of edited rows that want log-probabilities.
  absl::Status FindRawLogits(Collective& collective);

  LogitsRow Raw(size_t row) const;    // as the model made it
  LogitsRow Local(size_t row) const;  // as it is sampled
  void ForRows(ThreadPool::Fn fn);
  Header GatheredHeader(int rank, size_t row) const;

  const Options options_;
  const size_t local_count_;  // local tokens that are no padding
  const size_t units_;
  BoundarySearch search_;
  std::vector<float> own_edited_;
  float* const edited_;          // [EditedRows][local_vocab]
  RowSource* source_ = nullptr;  // of the running call
  size_t first_ = 0, rows_ = 0;  // of the running turn
  size_t mine_keys_ = 0;         // what a rank sends in this call, in 8-byte words

  std::vector<RowState> states_;
  std::vector<float> unit_max_;                // [row][units], of the raw logits
  std::vector<float> edited_unit_max_;         // [edited row][units]
  std::vector<uint32_t> counts_;               // of EditLogits, [thread][local tokens]
  std::vector<uint64_t> scratch_;              // of TopTokens, [thread][kScratch]
  std::vector<uint64_t> mine_;                 // headers, then candidates
  std::vector<uint64_t> all_;                  // [world] of these
  std::vector<uint64_t> merged_;               // [row][kMerged]
  std::vector<uint64_t> raw_merged_;           // [edited row][kMaxTopLogprobs]
  std::vector<int64_t> sums_;                  // [row][raw sum, mass, bits of the target's logit]
  std::vector<size_t> fetch_;                  // rows
  std::vector<LogitSumRequest> sum_requests_;  // [row]
  std::vector<LogitSums> device_sums_;         // [row]
  std::vector<SearchTask> tasks_;
  std::vector<Draw> my_draws_, all_draws_;
};

}  // namespace bitshard
