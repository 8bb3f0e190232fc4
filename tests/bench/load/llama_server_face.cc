#include "tests/bench/load/llama_server_face.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

absl::Status SocketError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  absl::Status Connect(const std::string& host, int port, absl::Duration timeout) {
    if (fd_ < 0) return SocketError("socket");
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const timeval patience = absl::ToTimeval(timeout);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
      return absl::InvalidArgumentError(absl::StrCat(host, " is no IPv4 address"));
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return SocketError(absl::StrCat("connect to ", host, ":", port));
    return absl::OkStatus();
  }

  absl::Status Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return SocketError("send");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return absl::OkStatus();
  }

  // Appends what comes next; UNAVAILABLE at the end of the stream.
  absl::Status Receive(std::string* out) {
    char bytes[16384];
    const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
    if (got < 0) return SocketError("receive");
    if (got == 0) return absl::UnavailableError("the server closed the connection");
    out->append(bytes, static_cast<size_t>(got));
    return absl::OkStatus();
  }

 private:
  const int fd_;
};

}  // namespace

LlamaServerFace::LlamaServerFace(const std::string& address, absl::Duration timeout)
    : timeout_(timeout) {
  const size_t colon = address.rfind(':');
  CHECK(colon != std::string::npos && absl::SimpleAtoi(address.substr(colon + 1), &port_))
      << address << " is no HOST:PORT";
  host_ = address.substr(0, colon);
}

LlamaServerFace::~LlamaServerFace() {
  for (std::thread& thread : threads_) thread.join();
}

void LlamaServerFace::Start(const LoadCall& call, LoadRecord* record, std::function<void()> ended) {
  threads_.emplace_back([this, &call, record, ended = std::move(ended)] {
    const absl::Status status = Post(call, record);
    record->end_s = LoadNow();
    record->code = status.code();
    record->message = std::string(status.message());
    ended();
  });
}

absl::Status LlamaServerFace::Post(const LoadCall& call, LoadRecord* record) const {
  const nlohmann::json body = {{"prompt", call.prompt}, {"n_predict", call.output_tokens},
                               {"stream", true},        {"temperature", 0},
                               {"ignore_eos", true},    {"cache_prompt", false}};
  const std::string text = body.dump();
  Socket socket;
  if (absl::Status status = socket.Connect(host_, port_, timeout_); !status.ok()) return status;
  const std::string head =
      absl::StrCat("POST /completion HTTP/1.1\r\nHost: ", host_, ":", port_,
                   "\r\nContent-Type: application/json\r\nContent-Length: ", text.size(),
                   "\r\nConnection: close\r\n\r\n");
  if (absl::Status status = socket.Send(head + text); !status.ok()) return status;

  AnswerDigest digest;
  std::string received;
  size_t at = 0;  // events before it are read
  while (true) {
    if (absl::Status status = socket.Receive(&received); !status.ok()) return status;
    const double now = LoadNow();
    // "HTTP/1.1 200 OK"
    if (received.size() > 12 && received.compare(8, 5, " 200 ") != 0)
      return absl::UnavailableError(received.substr(0, 300));
    // An event is a chunk of its own: the chunks' heads lie between events.
    constexpr std::string_view kBegin = "data: ", kEnd = "\n\n";
    for (size_t begin; (begin = received.find(kBegin, at)) != std::string::npos;) {
      const size_t end = received.find(kEnd, begin);
      if (end == std::string::npos) break;
      at = end + kEnd.size();
      begin += kBegin.size();
      const auto event =
          nlohmann::json::parse(received.begin() + static_cast<ptrdiff_t>(begin),
                                received.begin() + static_cast<ptrdiff_t>(end), nullptr,
                                /*allow_exceptions=*/false);
      if (!event.is_object() || !event.contains("content"))
        return absl::DataLossError(
            absl::StrCat("unknown event: ", received.substr(begin, end - begin)));
      if (record->first_s == 0) record->first_s = now;
      digest.Add(event.value("content", std::string()));
      if (!event.value("stop", false)) continue;
      record->tokens = event.value("tokens_predicted", 0u);
      record->digest = digest.value();
      return absl::OkStatus();
    }
  }
}

}  // namespace bitshard
