// A TCP proxy on loopback for one connection, which spoils what goes from the dialler to the
// target.
#pragma once

#include <arpa/inet.h>
#include <atomic>
#include <cstdint>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "kernels/base/check.h"

namespace bitshard {

class TcpProxy {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Fault {
    uint64_t flip_at = kNever;  // one bit of this byte
    uint64_t cut_at = kNever;   // ends both connections before this byte
  };

  TcpProxy(const sockaddr_in& target, Fault fault) : target_(target), fault_(fault) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0);
    socklen_t length = sizeof(address_);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &length) == 0);
    CHECK(listen(listener_, 1) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpProxy() {
    stop_ = true;
    thread_.join();
    close(listener_);
  }

  const sockaddr_in& address() const { return address_; }

 private:
  bool Readable(int fd) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, 5) > 0;
  }
  static bool WriteAll(int fd, const uint8_t* data, size_t n) {
    while (n > 0) {
      const ssize_t wrote = send(fd, data, n, MSG_NOSIGNAL);
      if (wrote <= 0) return false;
      data += wrote;
      n -= wrote;
    }
    return true;
  }

  void Run() {
    while (!Readable(listener_)) {
      if (stop_) return;
    }
    const int from = accept(listener_, nullptr, nullptr);
    const int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(to, reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) == 0);
    // A thread a direction: a full socket of one must not hold up the other.
    std::atomic<bool> over{false};
    std::thread back([&] {
      Pump(to, from, {}, over);
      over = true;
    });
    Pump(from, to, fault_, over);
    over = true;
    shutdown(from, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
    back.join();
    close(from);
    close(to);
  }

  void Pump(int from, int to, Fault fault, const std::atomic<bool>& over) {
    static thread_local uint8_t buffer[64 << 10];
    for (uint64_t at = 0; !stop_ && !over;) {
      if (!Readable(from)) continue;
      const ssize_t n = read(from, buffer, sizeof(buffer));
      if (n <= 0) return;
      const uint64_t end = at + static_cast<uint64_t>(n);
      if (fault.flip_at >= at && fault.flip_at < end) buffer[fault.flip_at - at] ^= 16;
      if (fault.cut_at < end) {
        WriteAll(to, buffer, fault.cut_at - at);
        return;
      }
      if (!WriteAll(to, buffer, static_cast<size_t>(n))) return;
      at = end;
    }
  }

  const sockaddr_in target_;
  const Fault fault_;
  int listener_ = -1;
  sockaddr_in address_{};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace bitshard
