#include "proto/status_map.h"

#include <cstddef>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/any.pb.h"

#include "proto/rpc_status.pb.h"

namespace bitshard {
namespace {

// grpc-message is percent-encoded on the wire (3 bytes for each that is not plain ASCII) and
// repeated inside the details (base64, 4 for 3): 1 KiB of message and 2 KiB of details stay below 8
// KiB together.
constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxDetailsBytes = 2048;

// Length of the valid UTF-8 sequence that `text` starts with; 0 when it starts with none.
size_t Utf8SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) {
    return 0;  // overlong, surrogate, or beyond U+10FFFF
  }
  return length;
}

std::string WireMessage(absl::string_view message) {
  std::string wire;
  while (!message.empty()) {
    const size_t length = Utf8SequenceLength(message);
    if (wire.size() + (length == 0 ? 1 : length) > kMaxMessageBytes) return wire + "...";
    if (length == 0) {
      wire += '?';
    } else {
      wire.append(message.data(), length);
    }
    message.remove_prefix(length == 0 ? 1 : length);
  }
  return wire;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(WireMessage(status.message()));
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any* detail = rich.add_details();
    detail->set_type_url(std::string(type_url));
    detail->set_value(std::string(payload));
  });
  std::string details;
  if (rich.details_size() > 0) details = rich.SerializeAsString();
  if (details.size() > kMaxMessageBytes + kMaxDetailsBytes) details.clear();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), rich.message(), details);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& detail : rich.details()) {
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

}  // namespace bitshard
