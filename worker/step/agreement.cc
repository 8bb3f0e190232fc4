#include "worker/step/agreement.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::Span<const uint32_t> Words(const google::protobuf::RepeatedField<uint32_t>& field) {
  return {field.data(), static_cast<size_t>(field.size())};
}

// Its size is checked elsewhere: a number of whole words.
void AddMask(const std::string& mask, StableHash& hash) {
  hash.Add(mask.size());
  for (size_t at = 0; at + sizeof(uint32_t) <= mask.size(); at += sizeof(uint32_t)) {
    uint32_t word;
    std::memcpy(&word, mask.data() + at, sizeof(word));
    hash.Add(word);
  }
}

void AddSequence(const internal::NewSequence& sequence, StableHash& hash) {
  hash.Add(sequence.slot());
  hash.Add(sequence.slot_gen());
  hash.Add(Words(sequence.tokens()));
  hash.Add(sequence.n_prompt());
  hash.Add(sequence.cached_tokens());
  hash.Add(Words(sequence.blocks()));
  hash.Add(sequence.score_from());
  hash.Add(static_cast<uint64_t>(sequence.pooling()));
  const internal::SamplingParams& sampling = sequence.sampling();
  hash.Add(std::bit_cast<uint32_t>(sampling.temperature()));
  hash.Add(sampling.top_k());
  hash.Add(std::bit_cast<uint32_t>(sampling.top_p()));
  hash.Add(std::bit_cast<uint32_t>(sampling.min_p()));
  hash.Add(sampling.seed());
  hash.Add(sampling.choice());
  hash.Add(sampling.top_logprobs());
  hash.Add(sampling.logprobs());
  hash.Add(std::bit_cast<uint32_t>(sampling.repetition_penalty()));
  hash.Add(std::bit_cast<uint32_t>(sampling.frequency_penalty()));
  hash.Add(std::bit_cast<uint32_t>(sampling.presence_penalty()));
  hash.Add(Words(sampling.bias_tokens()));
  for (const float bias : sampling.biases()) hash.Add(std::bit_cast<uint32_t>(bias));
  AddMask(sampling.allowed(), hash);
  hash.Add(sampling.min_tokens());
  hash.Add(Words(sampling.end_tokens()));
}

}  // namespace

uint64_t HashPlan(const internal::StepPlan& plan) {
  StableHash hash;
  hash.Add(plan.term());
  hash.Add(static_cast<uint64_t>(plan.new_sequences_size()));
  for (const internal::NewSequence& sequence : plan.new_sequences()) AddSequence(sequence, hash);
  hash.Add(Words(plan.slot()));
  hash.Add(Words(plan.slot_gen()));
  hash.Add(Words(plan.start()));
  hash.Add(Words(plan.n_tokens()));
  hash.Add(Words(plan.output_index()));
  hash.Add(Words(plan.flags()));
  hash.Add(Words(plan.n_new_blocks()));
  hash.Add(Words(plan.new_blocks()));
  for (const std::string& mask : plan.masks()) AddMask(mask, hash);
  return std::max<uint64_t>(1, hash.value());
}

absl::Status Agreement::ComparePlans(Collective& collective, const internal::StepPlan& plan,
                                     uint64_t hash) {
  plan_hash_ = hash;
  return Compare(collective, {{plan.epoch(), plan.step(), plan_hash_, 0}, 0});
}

absl::StatusOr<bool> Agreement::CompareTokens(Collective& collective,
                                              const internal::StepPlan& plan,
                                              absl::Span<const uint32_t> tokens,
                                              uint64_t next_hash) {
  StableHash hash;
  hash.Add(tokens);
  RETURN_IF_ERROR(
      Compare(collective, {{plan.epoch(), plan.step(), plan_hash_, hash.value()}, next_hash}));
  // The lowest rank that knows the next plan is what all others are held against, on every rank.
  uint64_t known = 0;
  size_t known_to = 0;
  bool all_know = true;
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    const uint64_t next = all_[rank].next_hash;
    all_know &= next != 0;
    if (next == 0 || next == known) continue;
    if (known != 0) {
      return absl::InternalError(absl::StrCat("ranks disagree in step ", plan.step() + 1,
                                              " of epoch ", plan.epoch(), ": rank ", known_to,
                                              " has plan ", absl::Hex(known), ", rank ", rank,
                                              " has plan ", absl::Hex(next)));
    }
    known = next;
    known_to = rank;
  }
  if (all_know) plan_hash_ = known;
  return all_know;
}

absl::Status Agreement::Compare(Collective& collective, const Told& told) {
  RETURN_IF_ERROR(collective.AllGather(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&told), sizeof(told)),
      absl::MakeSpan(reinterpret_cast<uint8_t*>(all_.data()), all_.size() * sizeof(Told))));
  const Word& mine = told.word;
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    const Word& other = all_[rank].word;
    if (other == mine) continue;
    return absl::InternalError(
        absl::StrCat("ranks disagree in step ", mine.step, " of epoch ", mine.epoch, ": rank ",
                     collective.rank(), " has plan ", absl::Hex(mine.plan_hash), " tokens ",
                     absl::Hex(mine.token_hash), ", rank ", rank, " has step ", other.step,
                     " epoch ", other.epoch, " plan ", absl::Hex(other.plan_hash), " tokens ",
                     absl::Hex(other.token_hash)));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
