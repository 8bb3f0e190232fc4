// The C++ client as a program, for the cases that every client must pass (client_cases.py): a
// request comes serialized on standard input, what the client gives goes to standard output, a line
// each.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/escaping.h"
#include "bitshard_client/client.h"

ABSL_FLAG(std::string, target, "", "host:port");
ABSL_FLAG(bool, complete, false, "Complete in place of Generate");
ABSL_FLAG(double, timeout, -1, "seconds; -1 = the client's default");
ABSL_FLAG(double, default_timeout, 300, "seconds");
ABSL_FLAG(int, max_attempts, 4, "as in ClientOptions");
ABSL_FLAG(bool, wait_for_ready, false, "as in ClientOptions");
ABSL_FLAG(int, max_resumes, 5, "as in ClientOptions");
ABSL_FLAG(int, connections, 1, "as in ClientOptions");
ABSL_FLAG(int, cancel_after, 0, "messages; 0 = never");
ABSL_FLAG(std::string, root_certificates, "", "PEM file; set = TLS");
ABSL_FLAG(std::string, private_key, "", "PEM file");
ABSL_FLAG(std::string, certificate_chain, "", "PEM file");
ABSL_FLAG(std::string, server_name, "", "as in TlsOptions");

namespace {

using bitshard::client::CallStatus;

std::string ReadFile(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Print(const std::string& what, const std::string& bytes) {
  std::cout << what << " " << absl::BytesToHexString(bytes) << "\n" << std::flush;
}

void PrintStatus(const CallStatus& status) {
  std::cout << "code " << bitshard::client::CodeName(status.code) << "\n";
  Print("error", status.message);
  std::cout << "reason " << status.reason << "\n";
  if (status.retry_after) std::cout << "retry_after " << status.retry_after->count() / 1e3 << "\n";
  for (const auto& wrong : status.fields) Print("field", wrong.field + "\t" + wrong.description);
  for (const std::string& quota : status.quota) Print("quota", quota);
}

bitshard::client::ClientOptions Options() {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  };
  bitshard::client::ClientOptions options;
  options.default_timeout = milliseconds(absl::GetFlag(FLAGS_default_timeout));
  options.max_attempts = absl::GetFlag(FLAGS_max_attempts);
  options.wait_for_ready = absl::GetFlag(FLAGS_wait_for_ready);
  options.max_resumes = absl::GetFlag(FLAGS_max_resumes);
  options.connections = absl::GetFlag(FLAGS_connections);
  if (!absl::GetFlag(FLAGS_root_certificates).empty()) {
    options.tls = bitshard::client::TlsOptions{ReadFile(absl::GetFlag(FLAGS_root_certificates)),
                                               ReadFile(absl::GetFlag(FLAGS_private_key)),
                                               ReadFile(absl::GetFlag(FLAGS_certificate_chain)),
                                               absl::GetFlag(FLAGS_server_name)};
  }
  return options;
}

void Generate(bitshard::client::Client& client, const std::string& bytes,
              const bitshard::client::CallOptions& call) {
  bitshard::v1::GenerateRequest request;
  request.ParseFromString(bytes);
  const auto answer = client.Generate(request, call);
  int count = 0;
  for (bitshard::v1::GenerateResponse message; answer->Read(&message);) {
    Print("message", message.SerializeAsString());
    if (++count == absl::GetFlag(FLAGS_cancel_after)) {
      Print("state", answer->ResumeState().SerializeAsString());
      answer->Cancel();
    }
  }
  PrintStatus(answer->Finish());
  std::cout << "resumes " << answer->resumes() << "\nid " << answer->request_id() << "\n";
}

void Complete(bitshard::client::Client& client, const std::string& bytes,
              const bitshard::client::CallOptions& call) {
  bitshard::v1::CompleteRequest request;
  request.ParseFromString(bytes);
  bitshard::v1::CompleteResponse response;
  const CallStatus status = client.Complete(request, &response, call);
  if (status.ok()) Print("response", response.SerializeAsString());
  PrintStatus(status);
  std::cout << "id " << status.request_id << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string bytes(std::istreambuf_iterator<char>(std::cin), {});
  bitshard::client::Client client(absl::GetFlag(FLAGS_target), Options());
  bitshard::client::CallOptions call;
  if (absl::GetFlag(FLAGS_timeout) >= 0) {
    call.timeout =
        std::chrono::milliseconds(static_cast<int64_t>(absl::GetFlag(FLAGS_timeout) * 1e3));
  }
  if (absl::GetFlag(FLAGS_complete)) {
    Complete(client, bytes, call);
  } else {
    Generate(client, bytes, call);
  }
  return 0;
}
