#include "worker/collective/gloo_link.h"

#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstring>
#include <errno.h>
#include <exception>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint64_t kDataSlot = 0, kControlSlot = 1;
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
constexpr size_t kMessageBytes = sizeof(MessageHead) + kGlooPayloadBytes;

// Gloo's texts, without the place in its sources and without its ports, which are in network order.
std::string Clean(std::string what) {
  if (!what.empty() && what[0] == '[') {
    const size_t end = what.find("] ");
    if (end != std::string::npos) what.erase(0, end + 2);
  }
  const size_t open = what.find(" ["), close = what.find(']', open == std::string::npos ? 0 : open);
  if (open != std::string::npos && close != std::string::npos) {
    size_t end = close + 1;
    while (end < what.size() && what[end] != ' ' && (what[end] != ':' || end == close + 1)) ++end;
    what.erase(open, end - open);
  }
  return what;
}

template <typename Fn>
absl::Status Guarded(Fn fn) {
  try {
    fn();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(Clean(error.what()));
  }
}

// Before Gloo tries, which leaks memory when it cannot. "" or why not.
std::string WhyNotListen(const std::string& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  const int code = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  if (code != 0) return gai_strerror(code);
  std::string why;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0) why = std::strerror(errno);
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return why;
}

}  // namespace

uint64_t MessageSum(const uint8_t* bytes, size_t n) {
  // Odd factors: no two values of a word have the same product.
  uint64_t sum = 0, factor = 0x9e3779b97f4a7c15u, word = 0;
  size_t i = 0;
  for (; i + sizeof(word) <= n; i += sizeof(word), factor += 2) {
    std::memcpy(&word, bytes + i, sizeof(word));
    sum += word * factor;
  }
  word = 0;
  if (i < n) std::memcpy(&word, bytes + i, n - i);
  return sum + word * factor;
}

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> OpenGlooDevice(
    const std::string& address) {
  std::shared_ptr<gloo::transport::Device> device;
  std::string why = WhyNotListen(address);
  if (why.empty()) {
    gloo::transport::tcp::attr attr(address.c_str());
    const absl::Status status =
        Guarded([&] { device = gloo::transport::tcp::CreateDevice(std::move(attr)); });
    if (status.ok()) return device;
    why = std::string(status.message());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("gloo: cannot listen on ", address, ": ", why,
                   "; --gloo-address must be a numeric address of this host"));
}

size_t GlooAddressBytes() {
  return gloo::transport::tcp::Address(sockaddr_storage{}).bytes().size();
}

std::string GlooAddressText(const std::string& address) {
  sockaddr_storage storage{};
  std::memcpy(&storage, address.data(), std::min(address.size(), sizeof(storage)));
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(in.sin6_port));
  }
  return "no address";
}

absl::StatusOr<std::unique_ptr<GlooLink>> GlooLink::Open(
    const std::shared_ptr<gloo::transport::Device>& device, bool first) {
  std::unique_ptr<GlooLink> link(new GlooLink);
  GlooLink& l = *link;
  l.peer_ = first ? 1 : 0;
  l.send_memory_.resize(kMessageBytes);
  for (std::vector<uint8_t>& memory : l.receive_memory_) memory.resize(kMessageBytes);
  RETURN_IF_ERROR(Guarded([&] {
    l.context_ = device->createContext(1 - l.peer_, 2);
    l.context_->setTimeout(gloo::kNoTimeout);
    const std::vector<char> bytes = l.context_->createPair(l.peer_)->address().bytes();
    l.address_.assign(bytes.begin(), bytes.end());
    const auto make = [&](void* data, size_t n) {
      return l.context_->createUnboundBuffer(data, n);
    };
    l.send_buffer_ = make(l.send_memory_.data(), kMessageBytes);
    for (int i = 0; i < 2; ++i)
      l.receive_buffer_[i] = make(l.receive_memory_[i].data(), kMessageBytes);
    l.hello_buffer_ = make(&l.hello_out_, sizeof(ControlMessage));
    l.end_buffer_ = make(&l.end_out_, sizeof(ControlMessage));
    l.control_buffer_ = make(&l.control_in_, sizeof(ControlMessage));
  }));
  return link;
}

GlooLink::~GlooLink() = default;

absl::Status GlooLink::Connect(const std::string& peer_address) {
  return Guarded([&] {
    context_->getPair(peer_)->connect(std::vector<char>(peer_address.begin(), peer_address.end()));
  });
}

void GlooLink::Close() {
  (void)Guarded([&] { context_->getPair(peer_)->close(); });
  WakeControl();
  WakeData();
}

absl::Status GlooLink::SendControl(const ControlMessage& message) {
  const bool hello = message.kind == ControlKind::kHello;
  (hello ? hello_out_ : end_out_) = message;
  const absl::Status status = Guarded([&] {
    (hello ? hello_buffer_ : end_buffer_)->send(peer_, kControlSlot, 0, sizeof(ControlMessage));
  });
  if (!hello && status.ok()) end_sent_.store(true, std::memory_order_release);
  return status;
}

absl::StatusOr<std::optional<ControlMessage>> GlooLink::ReceiveControl() {
  bool came = false;
  RETURN_IF_ERROR(Guarded([&] {
    if (!std::exchange(control_asked_, true))
      control_buffer_->recv(peer_, kControlSlot, 0, sizeof(ControlMessage));
    came = control_buffer_->waitRecv(nullptr, kForever);
  }));
  if (!came) return std::optional<ControlMessage>();
  control_asked_ = false;
  return std::optional<ControlMessage>(control_in_);
}

void GlooLink::WakeControl() { control_buffer_->abortWaitRecv(); }

void GlooLink::FlushControl() {
  if (!end_sent_.load(std::memory_order_acquire)) return;
  (void)Guarded([&] { end_buffer_->waitSend(nullptr, std::chrono::milliseconds(100)); });
}

absl::Status GlooLink::AskForMessage(int parity) {
  return Guarded([&] { receive_buffer_[parity]->recv(peer_, kDataSlot, 0, kMessageBytes); });
}

absl::Status GlooLink::SendMessage(const MessageHead& head) {
  CHECK_LE(head.bytes, kGlooPayloadBytes);
  std::memcpy(send_memory_.data(), &head, sizeof(head));
  sending_ = true;
  return Guarded([&] { send_buffer_->send(peer_, kDataSlot, 0, sizeof(head) + head.bytes); });
}

absl::StatusOr<bool> GlooLink::AwaitSent() {
  if (!sending_) return true;
  RETURN_IF_ERROR(Guarded([&] { sending_ = !send_buffer_->waitSend(nullptr, kForever); }));
  return !sending_;
}

void GlooLink::FlushMessage() {
  while (sending_) {
    bool left = false;
    const absl::Status status =
        Guarded([&] { left = send_buffer_->waitSend(nullptr, std::chrono::milliseconds(1000)); });
    sending_ = status.ok() && !left;  // woken for an older reason: once more
  }
}

absl::StatusOr<bool> GlooLink::AwaitMessage(int parity) {
  bool came = false;
  RETURN_IF_ERROR(Guarded([&] { came = receive_buffer_[parity]->waitRecv(nullptr, kForever); }));
  return came;
}

bool GlooLink::HasMessage(int parity) {
  // A wait of no time throws and closes the connection when nothing is there; it returns false once
  // for every WakeData before.
  for (bool came = false;;) {
    const absl::Status status = Guarded(
        [&] { came = receive_buffer_[parity]->waitRecv(nullptr, std::chrono::milliseconds(0)); });
    if (!status.ok()) return false;
    if (came) return true;
  }
}

MessageHead GlooLink::head(int parity) const {
  MessageHead head;
  std::memcpy(&head, receive_memory_[parity].data(), sizeof(head));
  return head;
}

void GlooLink::WakeData() {
  for (const auto& buffer : receive_buffer_) buffer->abortWaitRecv();
  send_buffer_->abortWaitSend();
}

}  // namespace bitshard
