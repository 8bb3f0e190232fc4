// Every template below tests/golden/chat, every conversation of its file, byte for byte as
// transformers renders it. A folder of more of such files may be named by BITSHARD_TEST_CHAT.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/chat_template.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> folders = {GoldenFile("chat")};
  if (const char* more = std::getenv("BITSHARD_TEST_CHAT")) folders.emplace_back(more);
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
  }
  // A template that is here, too, is taken from here.
  std::map<std::string, std::string> by_name;
  for (const std::string& file : files) by_name.emplace(fs::path(file).stem(), file);
  files.clear();
  for (const auto& [name, file] : by_name) files.push_back(file);
  return files;
}

struct Golden {
  json file;
  ChatTemplate chat;
  absl::Time now;
};

Golden Load(const std::string& path) {
  json file = json::parse(ReadFileOrDie(path));
  const std::string source =
      ReadFileOrDie(fs::path(path).parent_path() / file["template"].get<std::string>());
  const auto text = [&](const char* key) {
    return file[key].is_string() ? file[key].get<std::string>() : std::string();
  };
  auto chat = ChatTemplate::Parse(source, text("bos_token"), text("eos_token"));
  EXPECT_TRUE(chat.ok()) << path << ": " << chat.status();
  // Templates that write the date were rendered on the day that the note ends with.
  absl::Time now = absl::UnixEpoch();
  if (file["date_note"].is_string()) {
    const std::string note = file["date_note"];
    absl::CivilDay day;
    EXPECT_TRUE(absl::ParseCivilTime(note.substr(note.size() - 10), &day)) << note;
    now = absl::FromCivil(absl::CivilHour(day) + 12, absl::LocalTimeZone());
  }
  return {std::move(file), *std::move(chat), now};
}

// The variables of a case, as transformers passes them on.
json Variables(const json& c) {
  json variables = {{"tools", nullptr}, {"documents", nullptr}};
  for (const auto& [key, value] : c.items()) {
    if (key != "name" && key != "rendered" && key != "error") variables[key] = value;
  }
  return variables;
}

class ChatGolden : public testing::TestWithParam<std::string> {};

TEST_P(ChatGolden, RendersEveryConversationByteForByte) {
  const Golden golden = Load(GetParam());
  for (const json& c : golden.file["cases"]) {
    const auto rendered = golden.chat.RenderVariables(Variables(c).dump(), golden.now);
    if (c.contains("error")) {
      EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument)
          << c["name"] << ": " << rendered.status();
      // What raise_exception says is told to the caller.
      const std::string error = c["error"];
      const std::string prefix = "TemplateError: ";
      if (error.starts_with(prefix)) {
        EXPECT_NE(std::string(rendered.status().message()).find(error.substr(prefix.size(), 150)),
                  std::string::npos)
            << c["name"] << ": " << rendered.status();
      }
      continue;
    }
    ASSERT_TRUE(rendered.ok()) << c["name"] << ": " << rendered.status();
    EXPECT_EQ(rendered->text, c["rendered"].get<std::string>()) << c["name"];
  }
}

// The API's messages, where they can say what the conversation says, give the same.
TEST_P(ChatGolden, TheApisMessagesRenderTheSame) {
  const Golden golden = Load(GetParam());
  const bool knows_calls = golden.chat.source().find("tool_calls") != std::string::npos;
  int compared = 0;
  for (const json& c : golden.file["cases"]) {
    if (c.contains("error")) continue;
    ChatInput chat;
    chat.now = golden.now;
    chat.add_generation_prompt = c["add_generation_prompt"];
    bool can_say = true;
    for (const json& in : c["messages"]) {
      ChatMessage out{.role = in["role"]};
      if (in["content"].is_string()) out.content = in["content"].get<std::string>();
      // Templates that do not look at calls of tools print null as "None"; here they get "".
      const bool none = in["content"].is_null() && knows_calls;
      can_say &= in["content"].is_string() || none;
      out.reasoning = in.value("reasoning_content", "");
      out.name = in.value("name", "");
      out.tool_call_id = in.value("tool_call_id", "");
      for (const json& call : in.value("tool_calls", json::array())) {
        out.tool_calls.push_back(
            {call["id"], call["function"]["name"], call["function"]["arguments"].dump()});
      }
      chat.messages.push_back(out);
    }
    for (const json& tool : c.value("tools", json::array())) {
      const json& function = tool["function"];
      chat.tools.push_back(
          {function["name"], function.value("description", ""), function["parameters"].dump()});
    }
    json variables = json::object();
    for (const auto& [key, value] : c.items()) {
      constexpr const char* kOwn[] = {"name",  "rendered", "messages",
                                      "tools", "error",    "add_generation_prompt"};
      if (std::find(std::begin(kOwn), std::end(kOwn), key) == std::end(kOwn)) {
        variables[key] = value;
      }
    }
    if (!variables.empty()) chat.variables_json = variables.dump();
    if (!can_say) continue;
    const auto rendered = golden.chat.Render(chat);
    ASSERT_TRUE(rendered.ok()) << c["name"] << ": " << rendered.status();
    EXPECT_EQ(rendered->text, c["rendered"].get<std::string>()) << c["name"];
    ++compared;
  }
  EXPECT_GE(compared, 15);
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGolden, testing::ValuesIn(GoldenFiles()),
                         [](const auto& info) {
                           std::string name = fs::path(info.param).stem();
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace bitshard
