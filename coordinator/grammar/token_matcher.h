// A constraint at work: which tokens may come next.
//
// A CompiledGrammar is shared and thread-safe. A TokenMatcher belongs to one sequence; one thread
// at a time. It knows committed tokens only: what is preempted, lost or still on its way has never
// been accepted, so nothing needs to be taken back for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace bitshard {

class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;

  // The sequence goes on with `token`. False, and nothing changes, when the grammar does not allow
  // it. An end token is allowed where the text may end, and nothing after it.
  virtual bool AcceptToken(int32_t token) = 0;

  // Writes the token mask (proto/token_mask.h) of what may come next, end tokens where the text may
  // end. False when nothing may follow but the end, or nothing at all. REQUIRES: no end token was
  // accepted.
  virtual bool FillMask(std::string* mask) = 0;

  // The text so far is complete; it may still be allowed to go on.
  virtual bool IsTerminated() const = 0;

  // Takes back the last tokens. REQUIRES: so many were accepted.
  virtual void Rollback(uint32_t tokens) = 0;
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;

  // Without `end_tokens` the mask never allows one; the sequence ends when
  // nothing may follow.
  virtual std::unique_ptr<TokenMatcher> NewMatcher(bool end_tokens) const = 0;
  // The mask of a new matcher.
  virtual const std::string& FirstMask(bool end_tokens) const = 0;
  // An estimate of a moment ago: it grows with use.
  virtual uint64_t MemoryBytes() const = 0;
  // It has grown too large, by itself or beside the others that are followed: whoever follows it is
  // to end.
  virtual bool TooLarge() const { return false; }
};

}  // namespace bitshard
