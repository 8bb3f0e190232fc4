#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "tests/fuzz/replay.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(ChatTemplateFuzz, NoTemplateCrashesTheParserOrTheInterpreter) {
  for (const char* name : {"smollm2", "chatml", "llama3-style", "gemma3-style"}) {
    std::ifstream file(GoldenFile(std::string("chat/templates/") + name + ".jinja"));
    std::stringstream bytes;
    bytes << file.rdbuf();
    ASSERT_FALSE(bytes.str().empty()) << name;
    ReplayWithMutations({bytes.str()}, 500, 10000);
  }
  ReplayWithMutations(
      {
          "{% set ns = namespace(x=[1,2.5,'a']) %}{% for k, v in {'a': 1}.items() if v is defined "
          "%}"
          "{% set ns.x = ns.x[::-1] + [k ~ v] %}{% else %}{{- loop.index -}}{% endfor %}{{ ns.x | "
          "join(', ') }}",
          "{% raw %}{{ x }}{% endraw %}{# c #}{%- if not a and b or c in 'xyz' -%}{{ 'q' * 3 }}{% "
          "elif 1 < 2 <= 3 %}"
          "{{ messages[-1]['content'].strip('h').split(' ', 1) }}{%+ endif +%}{{ (1,) }}{{ -7 // 2 "
          "% 3 }}",
          "{% macro m(a, b=[1, 2]) %}{{ a | tojson(indent=2) }}{{ caller() if caller else b | "
          "map('string') | join }}{% endmacro %}{% call m({'k': tools}) %}{{ messages | "
          "selectattr('role', 'equalto', 'tool') | list | length }}{% endcall %}{{ m(documents, "
          "b=messages | sort(attribute='role') | map(attribute='content') | list) }}",
          "{% filter upper %}{% set x | trim %} {{ '%s' % messages[0].content }} {% endset %}{{ "
          "x.replace('s', 'xy') ~ '{0}'.format(x)[::-1] }}{% endfilter %}{% for k, v in "
          "tools[0].function | dictsort %}{{ k }}{{ v | string | indent(3) }}{% endfor %}",
      },
      500, 30000);
}

}  // namespace
}  // namespace bitshard
