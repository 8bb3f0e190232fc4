#include "coordinator/text/chat_template.h"

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

absl::StatusOr<std::string> Render(std::string_view source) {
  const auto chat = ChatTemplate::Parse(source, "<B>", "<E>");
  if (!chat.ok()) return chat.status();
  const auto rendered = chat->Render(
      {.messages = {{.role = "system", .content = "Be kind."}, {.role = "user", .content = " Hi "}},
       .now = absl::FromUnixSeconds(1'700'000'000)});
  if (!rendered.ok()) return rendered.status();
  return rendered->text;
}

// Expected texts are what Jinja2 3.1 prints with trim_blocks and lstrip_blocks.
void ExpectPrints(std::string_view source, std::string_view expected) {
  const auto out = Render(source);
  ASSERT_TRUE(out.ok()) << source.substr(0, 80) << ": " << out.status();
  EXPECT_EQ(*out, expected) << source.substr(0, 80);
}

void ExpectRefused(std::string_view source, absl::StatusCode code, std::string_view reason) {
  const auto out = Render(source);
  EXPECT_EQ(out.status().code(), code) << source.substr(0, 80) << ": " << out.status();
  EXPECT_NE(std::string(out.status().message()).find(reason), std::string::npos)
      << source.substr(0, 80) << ": " << out.status();
}

TEST(ChatTemplate, WhiteSpaceAroundTagsFollowsTheirSigns) {
  ExpectPrints("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
  ExpectPrints("a\n  {%+ if true %}\nb{% endif +%}\nc", "a\n  b\nc");
  ExpectPrints("a \n {%- if true -%} \n b {%- endif -%} \n c", "abc");
  ExpectPrints("x  {{- 'y' -}}  z", "xyz");
  ExpectPrints("x  {{ 'y' }}\nz", "x  y\nz");
  ExpectPrints("a {# note #}\nb\n  {# note #}\nc {#- note -#} d", "a b\ncd");
  ExpectPrints("x {% raw %}{{ y }}{% endraw %} z", "x {{ y }} z");
  ExpectPrints("a\r\nb\r\n", "a\nb");
  ExpectPrints("a\n\n", "a\n");
}

TEST(ChatTemplate, ExpressionsMeanWhatTheyMeanInPython) {
  ExpectPrints("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 6 / 3 }}",
               "7 3 -4 2 2.0");
  ExpectPrints("{{ 'a' + 'b' ~ 1 }} {{ 'ab' * 2 }} {{ 'b' in 'abc' }}", "ab1 abab True");
  ExpectPrints("{{ [1, 'a', None, true, 1.5] }} {{ {'k': (1,)} }}",
               "[1, 'a', None, True, 1.5] {'k': (1,)}");
  ExpectPrints("{{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][-1] }} {{ 'h\u00e9y'[1] }}",
               "bc cba 3 \u00e9");
  ExpectPrints("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ not 0 }} {{ '' or 'x' }} {{ 0 and 1 }}",
               "True True True x 0");
  ExpectPrints("{{ 'yes' if messages else 'no' }}{{ 'never' if false }}", "yes");
  ExpectPrints(R"({{ 'it\'s \u00e9\n' }}{{ "\\d" }})", "it's \u00e9\n\\d");
  ExpectPrints("{{ nothing }}{{ nothing is defined }} {{ messages is iterable }}", "False True");
  ExpectPrints("{{ {'a': {'b': 1}} }}", "{'a': {'b': 1}}");
}

TEST(ChatTemplate, LoopsKnowTheirPlace) {
  ExpectPrints(
      "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ m.role }};{% "
      "endfor %}",
      "1TrueFalsesystem;2FalseTrueuser;");
  ExpectPrints("{% for m in messages if m.role == 'user' %}{{ m['content'] | trim }}{% endfor %}",
               "Hi");
  ExpectPrints("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2");
  ExpectPrints("{% for x in [] %}a{% else %}none{% endfor %}", "none");
  ExpectPrints(
      "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
      "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
      "013");
}

TEST(ChatTemplate, AssignmentsInLoopsStayInsideUnlessToANamespace) {
  ExpectPrints("{% set x = 0 %}{% for i in [1, 2] %}{% set x = x + i %}{% endfor %}{{ x }}", "0");
  ExpectPrints(
      "{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}"
      "{% endfor %}{{ ns.x }}",
      "3");
  ExpectPrints("{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "5");
  ExpectPrints("{% set x %}a{{ 1 }}{% endset %}[{{ x }}]", "[a1]");
  ExpectPrints("{% generation %}{{ bos_token }}{% endgeneration %}{{ eos_token }}", "<B><E>");
}

TEST(ChatTemplate, MethodsAndFiltersWorkOnText) {
  ExpectPrints("{{ ' a b '.strip() }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'a,b,c'.split(',')[-1] }}",
               "a b|axx|c");
  ExpectPrints("{{ 'abc'.startswith('ab') }} {{ 'aXa'.replace('a', 'b') }} {{ 'Ab'.upper() }}",
               "True bXb AB");
  ExpectPrints("{{ 'h\u00e9' | length }} {{ [1, 2] | join('-') }} {{ x | default('d') }}",
               "2 1-2 d");
  ExpectPrints("{{ messages | first | length }} {{ (messages | last).role }}", "2 user");
}

TEST(ChatTemplate, MacrosSeeTheTemplatesVariablesAndTheirOwn) {
  ExpectPrints("{% macro f(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ f(1) }}{{ f(b=3, a='x') }}",
               "1-2;x-3;");
  ExpectPrints(
      "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
      "3210");
  ExpectPrints(
      "{% set x = 1 %}{% macro f() %}{{ x }}{{ i is defined }}{% set x = 9 %}{% endmacro %}"
      "{% set x = 2 %}{% for i in [1] %}{{ f() }}{% endfor %}{{ x }}",
      "2False2");
  ExpectPrints(
      "{% macro box(t) %}<{{ t }}:{{ caller() }}>{% endmacro %}"
      "{% for i in [1, 2] %}{% call box('b') %}{{ i }}{% endcall %}{% endfor %}",
      "<b:1><b:2>");
  ExpectPrints(
      "{% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}"
      "{% call(v) each([1, 2]) %}[{{ v }}]{% endcall %}",
      "[1][2]");
  ExpectPrints(
      "{% filter upper %}a{{ 'b' }}{% endfilter %}{% set y | trim %} c {% endset %}{{ y }}", "ABc");
  ExpectPrints("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "3False");
}

TEST(ChatTemplate, FiltersOfSequences) {
  ExpectPrints(
      "{{ [{'a': 1, 'b': 'x'}, {'a': 2}] | selectattr('b', 'defined') | map(attribute='a') "
      "| list }}",
      "[1]");
  ExpectPrints("{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [1, 2, 1] | unique | list }}",
               "[1, 2, 3] ['A', 'b'] [1, 2]");
  ExpectPrints("{{ {'b': 1, 'a': 2} | dictsort }} {{ {'k': [1]} | items | list }}",
               "[('a', 2), ('b', 1)] [('k', [1])]");
  ExpectPrints("{{ [1, 2, 3] | select('odd') | list }} {{ [1, 2] | reject('equalto', 1) | list }}",
               "[1, 3] [2]");
  ExpectPrints("{{ [4, 2] | min }}{{ [4, 2] | max }}{{ [4, 2] | sum }}{{ 'abc' | reverse }}",
               "246cba");
  ExpectPrints("{{ ['a b', 'c'] | map('upper') | join('+') }}", "A B+C");
  ExpectPrints("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'hello WORLD' | capitalize }}|{{ 'a b' | title }}",
               "a\n  b\n\n  c|Hello world|A B");
  ExpectPrints(
      "{{ '7' | int + 1 }} {{ 'x' | int(3) }} {{ 2.5 | round }} {{ -3 | abs }} {{ '1' | float }}",
      "8 3 2.0 3 1.0");
  ExpectPrints("{{ '%s has %d' % ('x', 3) }} {{ '{} {1} {n}'.format(1, 2, n=3) }}",
               "x has 3 1 2 3");
  ExpectPrints("{% set l = [1] %}{{ l.append(2) }}{{ l }}{{ l.pop() }}{{ l }}", "None[1, 2]2[1]");
  ExpectPrints("{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}", "aba");
}

// As json.dumps writes it with transformers' defaults.
TEST(ChatTemplate, ToJsonIsPythons) {
  ExpectPrints("{{ {'a': [1, 2.0, none, true, 'é\"\\n'], 'b': {}, 'c': []} | tojson }}",
               R"({"a": [1, 2.0, null, true, "é\"\n"], "b": {}, "c": []})");
  ExpectPrints("{{ {'b': [1, {'c': []}], 'a': 1} | tojson(indent=2, sort_keys=true) }}",
               "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}");
  ExpectPrints("{{ ['é😀', 1] | tojson(ensure_ascii=true, separators=(',', ':')) }}",
               R"(["\u00e9\ud83d\ude00",1])");
  ExpectPrints("{{ '<b>&' | tojson | safe }}", "\"<b>&\"");
  ExpectPrints("{{ ('{\"b\": 1, \"a\": [1.5]}' | from_json) }}", "{'b': 1, 'a': [1.5]}");
  ExpectRefused("{{ nothing | tojson }}", absl::StatusCode::kInvalidArgument, "'nothing'");
}

TEST(ChatTemplate, TheDateIsTheCallers) {
  ExpectPrints("{{ strftime_now('%Y') }}", "2023");
  ExpectPrints("{% if strftime_now is defined %}{{ strftime_now('%d') | length }}{% endif %}", "2");
  ExpectRefused("{{ strftime_now('x' * 5000) }}", absl::StatusCode::kInvalidArgument, "1024");
}

TEST(ChatTemplate, SyntaxErrorsNameTheLine) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  ExpectRefused("a\n{{ 1 +", kCode, "line 2");
  ExpectRefused("{% if true %}\nx", kCode, "endif");
  ExpectRefused("{% for x %}{% endfor %}", kCode, "'in'");
  ExpectRefused("\n\n{{ 'open }}", kCode, "line 3");
  ExpectRefused("{# open", kCode, "#}");
  ExpectRefused("{{ a ? b }}", kCode, "'?'");
  ExpectRefused("{% endif %}", kCode, "endif");
  ExpectRefused("{% nonsense %}", kCode, "nonsense");
  ExpectRefused("{{ 99999999999999999999 }}", kCode, "too large");
  ExpectRefused("{{ '\\ud800' }}", kCode, "Unicode");
  ExpectRefused("\xFF", kCode, "UTF-8");
  ExpectRefused(std::string(2 << 20, 'x'), kCode, "refused");
}

TEST(ChatTemplate, ConstructsThatWeDoNotHaveAreNamedWhenTheTemplateIsRead) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  for (const auto& [source, name] :
       {std::pair{"{% for i in [1] %}{% macro f() %}{% endmacro %}{% endfor %}", "macro"},
        std::pair{"{% include 'x' %}", "include"}, std::pair{"{{ x | nonsense }}", "'nonsense'"},
        std::pair{"{% do x %}", "'do'"}, std::pair{"{{ nonsense() }}", "'nonsense'"},
        std::pair{"{{ x | trim(1, 2) }}", "'trim'"},
        std::pair{"{{ x | tojson(wide=1) }}", "'wide'"},
        std::pair{"{{ x | map('nonsense') }}", "'nonsense'"},
        std::pair{"{{ x | selectattr('a', 'nonsense') }}", "'nonsense'"},
        std::pair{"{{ {1: 2} }}", "'int'"}, std::pair{"{{ f(*x) }}", "'*args'"},
        std::pair{"{{ x is nonsense }}", "'nonsense'"},
        std::pair{"{{ x.nonsense() }}", "'nonsense'"}, std::pair{"{{ 2 ** 3 }}", "'**'"},
        std::pair{"{% for x in y recursive %}{% endfor %}", "recursive"}}) {
    const auto chat = ChatTemplate::Parse(source, "", "");
    EXPECT_EQ(chat.status().code(), kCode) << source << ": " << chat.status();
    EXPECT_NE(std::string(chat.status().message()).find(name), std::string::npos) << chat.status();
  }
}

TEST(ChatTemplate, FailuresOfTheProgramAreTheCallersErrorWithTheLine) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  ExpectRefused("\n{{ raise_exception('roles must alternate') }}", kCode, "roles must alternate");
  ExpectRefused("\n{{ 'a' + 1 }}", kCode, "line 2: can only concatenate str (not \"int\") to str");
  ExpectRefused("{{ missing.role }}", kCode, "'missing' is undefined");
  ExpectRefused("{% if missing is not defined %}{{ missing() }}{% endif %}", kCode,
                "'missing' is undefined");
  ExpectRefused("{{ 1 / 0 }}", kCode, "zero");
  ExpectRefused("{{ 9223372036854775807 + 1 }}", kCode, "64 bits");
  ExpectRefused("{% for x in 5 %}{% endfor %}", kCode, "not iterable");
  ExpectRefused("{% for a, b in [[1]] %}{% endfor %}", kCode, "unpack");
  ExpectRefused("{% set messages.x = 1 %}", kCode, "namespace");
}

TEST(ChatTemplate, ProgramsWithoutEndOrMeasureAreStopped) {
  constexpr auto kCode = absl::StatusCode::kResourceExhausted;
  ExpectRefused("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
                kCode, "steps");
  ExpectRefused("{{ range(1000000000) }}", kCode, "steps");
  ExpectRefused("{{ 'x' * 1000000000 }}", kCode, "bytes");
  ExpectRefused("{{ [1] * 9223372036854775807 }}", kCode, "");
  ExpectRefused("{% for i in range(20) %}{{ 'x' * 1000000 }}{% endfor %}", kCode, "prints");
  ExpectRefused(
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      kCode, "");
  ExpectRefused(
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      kCode, "");
}

TEST(ChatTemplate, ThingsNestedTooDeeplyAreRefused) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  ExpectRefused("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}", kCode,
                "deeper");
  ExpectRefused("{{ " + std::string(100000, '-') + "1 }}", kCode, "too many");
  ExpectRefused("{{ " + std::string(100000, '[') + "1" + std::string(100000, ']') + " }}", kCode,
                "deeper");
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  ExpectRefused(sum + " }}", kCode, "deeper");
  std::string ifs;
  for (int i = 0; i < 10000; ++i) ifs += "{% if 1 %}";
  ExpectRefused(ifs, kCode, "deeper");
  std::string nots = "{{ ";
  for (int i = 0; i < 100001; ++i) nots += "not ";
  ExpectPrints(nots + "1 }}", "False");
  ExpectRefused("{% set ns = namespace() %}{% set ns.me = ns %}{{ [ns] }}", kCode, "itself");
  ExpectRefused("{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}", kCode, "itself");
  ExpectRefused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                absl::StatusCode::kResourceExhausted, "nested too deeply");
}

TEST(ChatTemplate, MessagesThatAreNotUtf8AreRefused) {
  const auto chat = ChatTemplate::Parse("{{ messages }}", "", "");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->Render({.messages = {{.role = "user", .content = "\xFF"}}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
