// Anything as a model's answer, in the notation that the first byte chooses: no byte of it is lost.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/output_parser.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  constexpr std::string_view kSources[] = {"<tool_call> </think>",
                                           "<tool_call> <function=",
                                           "<|start_header_id|> <|python_tag|>",
                                           "[TOOL_CALLS]",
                                           "<|tool_call|> </think></response>",
                                           "<｜tool▁call▁begin｜>",
                                           "<|channel|> <|message|>"};
  if (size == 0) return 0;
  static const auto tools = std::make_shared<const std::vector<ChatTool>>(std::vector<ChatTool>{
      {.name = "f", .parameters_json = R"({"properties": {"n": {"type": "integer"}}})"}});
  std::string text;
  AppendUtf8Lossy(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1),
                  /*keep_incomplete_tail=*/false, &text);
  const OutputFormat format(kSources[data[0] % std::size(kSources)]);
  const auto parser = format.Make({.prompt = "", .tools = tools});
  CHECK(parser != nullptr);
  OutputPieces pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CodePointAt(text, at).bytes;
    parser->Push(std::string_view(text).substr(at, bytes), &pieces);
    at += bytes;
  }
  parser->Finish(&pieces);
  std::string raw;
  for (const OutputPiece& piece : pieces.Take()) {
    CHECK(!FirstInvalidUtf8(piece.arguments).has_value());
    raw += piece.raw;
  }
  CHECK(raw == text);
  return 0;
}
