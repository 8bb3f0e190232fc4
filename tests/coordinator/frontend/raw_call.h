// One call over a bare HTTP/2 connection, for what gRPC's clients keep to themselves: the trailer
// endpoint-load-metrics-bin goes to the balancer of a channel and never to the application.
#pragma once

#include <arpa/inet.h>
#include <cstdint>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/await.h"

namespace bitshard {

class RawCall {
 public:
  // Sends one message and reads until the trailers: their header block (HPACK) as it came.
  static std::string Trailers(int port, const std::string& method, const std::string& message) {
    RawCall call(port);
    call.SendRequest(method, message);
    return call.ReadTrailers();
  }

  // The value of a header named literally in a header block; its bytes when the name ends in -bin.
  static std::optional<std::string> Value(const std::string& block, const std::string& name) {
    const size_t found = block.find(name);
    if (found == std::string::npos) return std::nullopt;
    size_t at = found + name.size();
    size_t length = Byte(block, at++);
    EXPECT_LT(length, 128u) << "Huffman coded";
    if (length == 127) {  // goes on in groups of 7 bits
      for (int shift = 0;; shift += 7) {
        const size_t byte = Byte(block, at++);
        length += (byte & 127) << shift;
        if (byte < 128) break;
      }
    }
    EXPECT_EQ(block[at], 0) << "not as bytes, though the settings say that we take them";
    return block.substr(at + 1, length - 1);
  }

 private:
  enum FrameType : uint8_t { kData = 0, kHeaders = 1, kSettings = 4 };
  static constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

  explicit RawCall(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{absl::ToInt64Seconds(kAwaitPatience), 0};
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawCall() { ::close(socket_); }
  RawCall(const RawCall&) = delete;

  static size_t Byte(const std::string& block, size_t at) {
    return static_cast<unsigned char>(block.at(at));
  }
  static std::string BigEndian(uint32_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
    return out;
  }
  static std::string Text(const std::string& text) { return static_cast<char>(text.size()) + text; }
  static std::string Frame(FrameType type, uint8_t flags, uint32_t stream,
                           const std::string& payload) {
    return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
           static_cast<char>(flags) + BigEndian(stream, 4) + payload;
  }

  void SendRequest(const std::string& method, const std::string& message) {
    // gRPC's setting 0xfe03: binary metadata may come as bytes, not as base64.
    const std::string settings = BigEndian(0xfe03, 2) + BigEndian(1, 4);
    // Names by their place in HPACK's static table: POST, http, :path, :authority, content-type.
    const std::string headers = "\x83\x86\x04" + Text(method) + "\x01" + Text("test") + "\x0f\x10" +
                                Text("application/grpc") + std::string(1, '\0') + Text("te") +
                                Text("trailers");
    const std::string body =
        std::string(1, '\0') + BigEndian(static_cast<uint32_t>(message.size()), 4) + message;
    const std::string all = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, settings) +
                            Frame(kHeaders, kEndHeaders, 1, headers) +
                            Frame(kData, kEndStream, 1, body);
    EXPECT_EQ(::send(socket_, all.data(), all.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(all.size()));
  }

  std::string ReadTrailers() {
    while (true) {
      const std::string head = Read(9);
      if (head.size() < 9) return "";
      const std::string payload = Read(Byte(head, 0) << 16 | Byte(head, 1) << 8 | Byte(head, 2));
      if (head[3] == kHeaders && (head[4] & kEndStream) != 0) return payload;
    }
  }
  std::string Read(size_t bytes) {
    std::string out(bytes, '\0');
    if (bytes > 0 &&
        ::recv(socket_, out.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
      ADD_FAILURE() << "the connection ended before the trailers, or they never came";
      return "";
    }
    return out;
  }

  const int socket_;
};

}  // namespace bitshard
