// Where the kept tokens of a row end, when the first candidates do not tell: exact, over the whole
// sharded vocabulary.
//
// The kept tokens are a prefix of the token order: by count (top-k) or by mass (top-p). All ranks
// narrow down the logit of its last token digit by digit (11 + 11 + 10 bits of SortableLogit) with
// summed histograms; among equal logits the lowest ids are kept, and ranks share how many of them
// each has.
//
// Collectives of a Run: for each kSearchRows tasks 3 all-reduces, plus one all-gather when a task
// wants its ties and cuts through some. All ranks pass the same tasks in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "worker/collective/collective.h"
#include "worker/sample/row_scan.h"

namespace bitshard {

struct SearchTask {
  // In.
  int row = 0;  // the caller's
  LogitsRow logits;
  Scale scale;
  bool by_count = false;
  int64_t target = 0;      // the shortest prefix with at least this count or mass; >= 1
  bool want_ties = false;  // this rank's share of the equals at the boundary

  // Out. `boundary` 0: the target is never reached, all tokens that take part are kept.
  uint32_t boundary = 0;
  int64_t ties = 0;        // tokens at the boundary
  int64_t ties_kept = 0;   // of which the lowest ids are kept
  int64_t kept_mass = 0;   // mass of the prefix
  int64_t local_ties = 0;  // of ties_kept, those on this rank (with want_ties)

  // Between rounds.
  int64_t before_count = 0, before_mass = 0;  // tokens above every token with this prefix
  uint32_t prefix = 0;
};

class BoundarySearch {
 public:
  BoundarySearch(uint32_t vocab_begin, int world);

  absl::Status Run(absl::Span<SearchTask> tasks, Collective& collective);

 private:
  static constexpr int kSearchRows = 8;  // bounds the buffer: 8 rows x 32 KiB
  static constexpr int kMaxBins = 2048;

  absl::Status RunGroup(absl::Span<SearchTask> tasks, Collective& collective);
  absl::Status ShareTies(absl::Span<SearchTask> tasks, Collective& collective);

  const uint32_t vocab_begin_;
  const int world_;
  std::vector<int64_t> histogram_;  // [tasks of a group][counts, masses][bins]
  std::vector<int64_t> my_ties_;    // vocab_begin, then one a task of the group
  std::vector<int64_t> all_ties_;   // [world] of these
};

}  // namespace bitshard
