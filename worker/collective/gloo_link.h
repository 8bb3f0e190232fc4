// One TCP connection of a communicator, to one peer, over Gloo's transport. Gloo's exceptions end
// here.
//
// Two streams of messages travel on it, each in order:
//   data     one a phase, MessageHead and at most kGlooPayloadBytes. Two are always asked for in
//            advance, so that a sender need not wait for the receiver.
//   control  hello, once, and how the group ended for the sender, at most once.
//
// A link has a Gloo context of its own. So what fails names the peer, and a thread that closes one
// connection never holds a lock that Gloo's own thread wants for another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace bitshard {

inline constexpr size_t kGlooPayloadBytes = size_t{1} << 20;

// Before the payload of every data message. Nothing in it is used as an index or a length.
struct MessageHead {
  uint64_t sequence;   // of the operation
  uint64_t operation;  // PackOperation
  uint64_t phase;      // since the group began
  uint64_t bytes;      // of the payload
  uint64_t sum;        // MessageSum of the payload
};

enum class ControlKind : uint32_t { kHello = 1, kAborted = 2, kLost = 3, kLeft = 4 };

struct ControlMessage {
  uint64_t magic;
  uint64_t tag;  // of the communicator
  ControlKind kind;
  uint32_t who;  // the rank that aborted, was lost or left; of a hello the sender
  uint32_t world;
  uint32_t unused;
};

// Differs when any one word of the bytes differs, or two have changed places.
uint64_t MessageSum(const uint8_t* bytes, size_t n);

// Listens on a numeric address of this host, each link on a port of its own. One a communicator: it
// has a thread.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> OpenGlooDevice(const std::string& address);

// Of what GlooLink::address() returns: how many bytes; "10.0.0.1:40123".
size_t GlooAddressBytes();
std::string GlooAddressText(const std::string& address);

class GlooLink {
 public:
  // Listens. `first`: whether this rank is lower than the peer.
  static absl::StatusOr<std::unique_ptr<GlooLink>> Open(
      const std::shared_ptr<gloo::transport::Device>& device, bool first);
  ~GlooLink();
  GlooLink(const GlooLink&) = delete;
  GlooLink& operator=(const GlooLink&) = delete;

  // Where the peer finds this end, for its Connect.
  const std::string& address() const { return address_; }

  // Waits for the peer, for as long as it takes; Close from another thread ends the wait.
  absl::Status Connect(const std::string& peer_address);

  // Any thread. Connect and every wait are over soon; the peer sees the connection end.
  void Close();

  // Control, after Connect. Sends never wait; `kind` hello and one other can be sent.
  absl::Status SendControl(const ControlMessage& message);
  // The next message, nothing after WakeControl, or what is wrong with the connection.
  absl::StatusOr<std::optional<ControlMessage>> ReceiveControl();
  void WakeControl();
  // Waits until the last control message has left, for about 100 ms at most.
  void FlushControl();

  // Data, by one thread.
  absl::Status AskForMessage(int parity);  // the next one that no buffer waits for yet
  uint8_t* send_payload() { return send_memory_.data() + sizeof(MessageHead); }
  absl::Status SendMessage(const MessageHead& head);  // and head.bytes of send_payload
  // True when it is done; false when woken. An error: the connection broke.
  absl::StatusOr<bool> AwaitSent();
  absl::StatusOr<bool> AwaitMessage(int parity);
  // Waits until the last message has left, for about a second at most.
  void FlushMessage();
  // Whether it has come, after AwaitMessage was woken. The connection is of no use any more when it
  // has not.
  bool HasMessage(int parity);
  MessageHead head(int parity) const;
  const uint8_t* payload(int parity) const {
    return receive_memory_[parity].data() + sizeof(MessageHead);
  }
  // Any thread: the current or next waits for data return early.
  void WakeData();

 private:
  GlooLink() = default;

  int peer_ = 0;  // rank of the peer in the context of two
  std::string address_;
  // Memory outlives the context, whose thread writes to it; buffers go first.
  std::vector<uint8_t> send_memory_;
  std::vector<uint8_t> receive_memory_[2];
  ControlMessage hello_out_{}, end_out_{}, control_in_{};
  std::shared_ptr<gloo::transport::Context> context_;
  std::unique_ptr<gloo::transport::UnboundBuffer> send_buffer_, receive_buffer_[2];
  std::unique_ptr<gloo::transport::UnboundBuffer> hello_buffer_, end_buffer_, control_buffer_;
  bool sending_ = false;
  bool control_asked_ = false;
  std::atomic<bool> end_sent_{false};
};

}  // namespace bitshard
