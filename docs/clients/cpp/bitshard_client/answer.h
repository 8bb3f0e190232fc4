// What came of one answer so far, and the request that goes on with it: resuming without I/O.
//
// A stream hands every message to Take and gives its caller what it returns. After a break, Request
// asks for the rest. Each piece is given once, whatever broke when: the service names, by ids, the
// tokens whose deltas are complete, and deltas that no tokens cover yet are held back until they
// are; they follow at once, or come again after a break. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bitshard_client/call_status.h"

#include "proto/inference.pb.h"

namespace bitshard::client {

std::string DrawId();

class Answer {
 public:
  // An id is drawn for a request without one.
  Answer(const v1::GenerateRequest& request, int max_resumes);

  const std::string& request_id() const { return request_.request_id(); }
  const std::optional<v1::Started>& started() const { return started_; }
  // How often it was tried again.
  int resumes() const { return resumes_; }
  // All choices have ended.
  bool complete() const;

  // Of the next call: the first one, or what goes on with the first choice that has not ended.
  v1::GenerateRequest Request();
  // With this in `resume`, the same request goes on here. `pending`: of the choice's tokens, those
  // not yet read. REQUIRES: the request has this choice.
  v1::Resume ResumeState(uint32_t choice, int pending) const;

  // The call brought its initial metadata: from here on gRPC does not try it again, and going on is
  // left to us.
  void Accepted() { began_ = came_ = true; }
  // Appends what the caller gets now. Not OK: the service breaks its contract, the answer is over.
  CallStatus Take(v1::GenerateResponse message, std::vector<v1::GenerateResponse>* given);
  // The call ended well, and some choice has not: the one that was resumed must have, others are
  // due. Not OK as above.
  CallStatus WentOn() const;
  // The call failed: how long until the next try, or nothing when there is none.
  std::optional<std::chrono::milliseconds> Broke(const CallStatus& status);
  // Adds to the message of `status`, the end of the answer, what came in `time` and what broke it
  // before.
  void Tell(std::chrono::milliseconds time, CallStatus* status) const;

 private:
  struct Choice {
    std::vector<uint32_t> output_ids;
    std::vector<v1::GenerateResponse> held;
    bool finished = false;
  };

  // To the caller.
  void Give(v1::GenerateResponse message, std::vector<v1::GenerateResponse>* given);
  bool MayGoOn(const CallStatus& status) const;
  CallStatus Fault(std::string what) const;

  v1::GenerateRequest request_;
  const int max_resumes_;
  const bool drawn_id_;
  const bool wants_ids_;
  std::map<uint32_t, Choice> choices_;
  std::optional<v1::Started> started_;
  bool started_given_ = false;
  bool prompt_given_ = false;
  bool broke_ = false;
  bool began_ = false, came_ = false;  // the service took the request: by any call, by this one
  // Since the last token: all tries that failed, and of them those that count.
  int tries_ = 0, breaks_ = 0;
  std::optional<uint32_t> due_;  // the choice that the call resumes
  int resumes_ = 0;
  std::string cause_;  // why the call before this one broke
};

}  // namespace bitshard::client
