// llama-server's own /completion: HTTP with server-sent events, a thread and a connection a call.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "tests/bench/load/load_run.h"

namespace bitshard {

class LlamaServerFace final : public LoadFace {
 public:
  // `address`: HOST:PORT, an IPv4 address. `timeout`: of one wait for bytes.
  LlamaServerFace(const std::string& address, absl::Duration timeout);
  ~LlamaServerFace() override;  // waits for the ends of all calls

  // Prompts go as token ids, greedy, on over end tokens, without its prompt cache. The digest is of
  // the text.
  void Start(const LoadCall& call, LoadRecord* record, std::function<void()> ended) override;

 private:
  absl::Status Post(const LoadCall& call, LoadRecord* record) const;

  std::string host_;
  int port_ = 0;
  const absl::Duration timeout_;
  std::vector<std::thread> threads_;  // of the thread that starts calls
};

}  // namespace bitshard
