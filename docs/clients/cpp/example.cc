// Asks one question and prints the answer as it is written: example [TARGET] [QUESTION]
#include <chrono>
#include <iostream>
#include <string>

#include "bitshard_client/client.h"

int main(int argc, char** argv) {
  const std::string target = argc > 1 ? argv[1] : "localhost:50051";
  const std::string question = argc > 2 ? argv[2] : "Name three primary colours.";

  bitshard::client::Client client(target);
  bitshard::v1::GenerateRequest request;
  bitshard::v1::ChatMessage& turn = *request.mutable_chat()->add_messages();
  turn.set_role("user");
  turn.set_content(question);
  request.set_max_tokens(128);

  bitshard::client::CallOptions call;
  call.timeout = std::chrono::seconds(60);
  const auto answer = client.Generate(request, call);
  for (bitshard::v1::GenerateResponse message; answer->Read(&message);) {
    std::cout << message.text() << std::flush;
    if (message.has_finished()) {
      std::cerr << "\n[" << bitshard::v1::FinishReason_Name(message.finished().reason()) << ", "
                << message.finished().usage().prompt_tokens() << " + "
                << message.finished().usage().completion_tokens() << " tokens, request "
                << answer->request_id() << "]\n";
    }
  }
  const bitshard::client::CallStatus status = answer->Finish();
  if (status.ok()) return 0;
  for (const auto& wrong : status.fields)
    std::cerr << wrong.field << ": " << wrong.description << "\n";
  std::cerr << status.ToString() << "\n";
  return status.fields.empty() ? 1 : 2;
}
