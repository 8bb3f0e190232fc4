#include "worker/collective/gloo_address.h"

#include <arpa/inet.h>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

std::optional<std::string> Text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN];
  if (address == nullptr) return std::nullopt;
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&in6)) return std::nullopt;  // means nothing without its interface
    bytes = &in6;
  }
  if (bytes == nullptr || inet_ntop(address->sa_family, bytes, text, sizeof(text)) == nullptr)
    return std::nullopt;
  return std::string(text);
}

struct Interface {
  std::string name;
  std::string address;
};

// IPv4 first.
std::vector<Interface> Interfaces() {
  std::vector<Interface> found[2];
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    const std::optional<std::string> text = Text(i->ifa_addr);
    if (text.has_value() && (i->ifa_flags & IFF_UP) != 0)
      found[i->ifa_addr->sa_family == AF_INET ? 0 : 1].push_back({i->ifa_name, *text});
  }
  freeifaddrs(all);
  found[0].insert(found[0].end(), found[1].begin(), found[1].end());
  return found[0];
}

bool IsLoopback(const std::string& address) {
  return address == "::1" || absl::StartsWith(address, "127.");
}

std::string Listed() {
  return absl::StrCat("this host has ",
                      absl::StrJoin(Interfaces(), ", ", [](std::string* out, const Interface& i) {
                        absl::StrAppend(out, i.address, " (", i.name, ")");
                      }));
}

// The address that packets to the coordinator carry.
absl::StatusOr<std::string> OnTheWayTo(const std::string& target) {
  const size_t colon = target.rfind(':');
  std::string host = target.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int code = getaddrinfo(host.c_str(), target.substr(colon + 1).c_str(), &hints, &found);
  if (code != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "gloo: cannot look up the coordinator's host ", host, ": ", gai_strerror(code)));
  }
  std::optional<std::string> text;
  for (const addrinfo* i = found; i != nullptr && !text.has_value(); i = i->ai_next) {
    const int fd = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (connect(fd, i->ai_addr, i->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0)
      text = Text(reinterpret_cast<const sockaddr*>(&own));
    close(fd);
  }
  freeaddrinfo(found);
  if (text.has_value()) return *text;
  return absl::FailedPreconditionError(
      absl::StrCat("gloo: there is no route to the coordinator at ", target));
}

absl::StatusOr<std::string> Choose(const GlooAddressChoice& choice) {
  if (!choice.address.empty()) {
    for (const Interface& i : Interfaces()) {
      if (i.address == choice.address) return choice.address;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("gloo: --gloo-address=", choice.address, ": ", Listed()));
  }
  if (!choice.interface.empty()) {
    for (const Interface& i : Interfaces()) {
      if (i.name == choice.interface) return i.address;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("gloo: --gloo-interface=", choice.interface, ": ", Listed()));
  }
  return OnTheWayTo(choice.coordinator);
}

}  // namespace

absl::StatusOr<std::string> ChooseGlooAddress(const GlooAddressChoice& choice) {
  ASSIGN_OR_RETURN(std::string address, Choose(choice));
  if (!choice.several_hosts || !IsLoopback(address)) return address;
  return absl::FailedPreconditionError(absl::StrCat(
      "gloo: the workers run on several hosts, and ", address,
      " is reached from this one alone; set --coordinator to an address that other hosts use too, "
      "or --gloo-interface or --gloo-address: ",
      Listed()));
}

}  // namespace bitshard
