// The memory of a rendering is bounded by its limits, whatever the template: every operator new of
// the process is counted, while hostile templates by hand and by chance run with small limits.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/text/jinja_interpreter.h"
#include "coordinator/text/jinja_json.h"
#include "coordinator/text/jinja_parser.h"
#include "coordinator/text/jinja_value.h"

namespace {

std::atomic<int64_t> in_use{0}, most{0};

void* Taken(void* memory) {
  if (memory == nullptr) std::abort();
  const int64_t now = in_use += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t seen = most;
  while (now > seen && !most.compare_exchange_weak(seen, now)) {
  }
  return memory;
}

void Given(void* memory) {
  in_use -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Taken(std::malloc(bytes)); }
void* operator new(size_t bytes, std::align_val_t align) {
  return Taken(std::aligned_alloc(static_cast<size_t>(align), (bytes + 63) / 64 * 64));
}
void operator delete(void* memory) noexcept { Given(memory); }
void operator delete(void* memory, size_t) noexcept { Given(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Given(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Given(memory); }

namespace bitshard {
namespace {

constexpr JinjaLimits kLimits = {.steps = 10'000, .bytes = uint64_t{1} << 20};
// Strings and lists that grow take up to three times their size, and an error's text is copied; a
// step may make a small object without being charged for it.
constexpr int64_t kMost =
    4 * static_cast<int64_t>(kLimits.bytes) + 256 * static_cast<int64_t>(kLimits.steps);

// What the rendering used at most, its program left out.
int64_t MemoryOf(const std::string& source) {
  const auto program = ParseJinja(source);
  EXPECT_TRUE(program.ok()) << source.substr(0, 500) << ": " << program.status();
  if (!program.ok()) return 0;
  // Once before: what libraries set up for good is not the template's.
  for (int round = 0;; ++round) {
    const int64_t before = in_use;
    most = before;
    {
      JinjaHeap heap(kLimits);
      const absl::StatusOr<JinjaValue> messages = JinjaFromJson(
          R"([{"role": "user", "content": "Gr\u00fc\u00df \ud83d\ude00"}])", /*own=*/false, &heap);
      EXPECT_TRUE(messages.ok());
      JinjaText out;
      JinjaInterpreter interpreter({{"messages", *messages}, {"n", JinjaValue::Int(7)}},
                                   absl::UnixEpoch(), &heap);
      const absl::Status status = interpreter.Run(**program, &out);
    }
    if (round == 1) return most - before;
  }
}

// 1,000 letters in a variable, in few steps.
const std::string kLong = "{% set t = 'x' * 1000 %}";
const std::string kMany = "{% set ns = namespace(l=[], s='') %}";

TEST(JinjaMemory, HostileTemplatesStayWithinTheirLimits) {
  const std::string name(30'000, 'v');
  const std::vector<std::string> templates = {
      // Printing what refers to the same again and again.
      kLong + "{% set a = [t] * 9000 %}{{ a }}",
      kLong + "{% set a = [t] * 9000 %}{{ a | tojson }}",
      kLong + "{% set a = [t] * 9000 %}{{ a | join }}",
      kLong + "{% set a = [[t] * 90] * 90 %}{% set b = a | string %}{{ b | length }}",
      kLong + "{% set d = {t: 1} %}{{ [d] * 9000 }}",
      kLong + "{% set d = {t: 1} %}{{ [d] * 9000 | tojson }}",
      kLong + "{% set d = {t: 1} %}{{ ([d] * 9000) | tojson }}",
      kLong + "{{ (([1] * 5000) | tojson(separators=[t, t])) | length }}",
      kLong + "{{ (([{'a': 1}] * 3000) | tojson(separators=[',', t])) | length }}",
      kLong + "{{ (([[1]] * 3000) | tojson(indent=t)) | length }}",
      kLong + "{{ ([1] * 9000) | join(t) | length }}",
      kLong + "{{ (t ~ t ~ t ~ t) | replace('x', t) | length }}",
      kLong + "{% set a = [t] * 9000 %}{{ a ~ a }}",
      kLong + "{% set a = [t] * 9000 %}{{ '%s' % (a,) }}",
      kLong + "{% set a = [t] * 9000 %}{{ '{}{}'.format(a, a) }}",
      kLong + "{% set a = [t] * 9000 %}{{ raise_exception(a) }}",
      kLong + "{{ raise_exception(t * 900) }}",
      kLong + "{{ {}.pop(t * 900) }}",
      "{{ ('\\n' * 5000) | indent('y' * 5000, true, true) | length }}",
      // Bodies that are collected before anything is printed, in each other.
      "{% macro m(n) %}{{ 'x' * 9000 }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}"
      "{{ m(250) | length }}",
      "{% macro m(n) %}" + std::string(20'000, 'x') +
          "{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(250) | length }}",
      "{% macro m(n) %}{% set b %}" + std::string(20'000, 'x') +
          "{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endset %}{% endmacro %}{{ m(120) }}",
      "{% for i in range(900) %}{% set b %}" + std::string(20'000, 'x') +
          "{% endset %}{% endfor %}",
      // Lists that are kept.
      kMany +
          "{% set t = ('x' * 50 ~ '\\n') * 40 %}{% for i in range(900) %}"
          "{{ ns.l.append(t.splitlines()) }}{% endfor %}",
      kMany +
          "{% set t = 'x ' * 2000 %}{% for i in range(900) %}{{ ns.l.append(t.split()) }}"
          "{% endfor %}",
      kMany +
          "{% set t = 'x' * 5000 %}{% for i in range(900) %}{{ ns.l.append(t | list) }}"
          "{% endfor %}",
      kMany +
          "{% set t = '{\"' ~ 'k' * 9000 ~ '\": 1}' %}{% for i in range(900) %}"
          "{{ ns.l.append(t | from_json) }}{% endfor %}",
      kMany +
          "{% set t = '[' ~ '1,' * 900 ~ '1]' %}{% for i in range(900) %}"
          "{{ ns.l.append(t | from_json) }}{% endfor %}",
      kMany +
          "{% set d = {'k' * 9000: 1} %}{% for i in range(900) %}{{ ns.l.append(dict(d)) }}"
          "{% endfor %}",
      kMany +
          "{% set d = {'k' * 9000: 1} %}{% for i in range(900) %}"
          "{{ ns.l.append(d.items()) }}{{ ns.l.append(d | items) }}{{ ns.l.append(d | list) }}"
          "{% endfor %}",
      kMany +
          "{% set t = 'x' * 9000 %}{% for i in range(900) %}{{ ns.l.append(t[1:]) }}"
          "{{ ns.l.append(t[::-1]) }}{{ ns.l.append(t | upper) }}{{ ns.l.append(t.title()) }}"
          "{% endfor %}",
      // Names as long as the program likes.
      kMany + "{% for i in range(900) %}{{ ns.l.append(" + name + ") }}{% endfor %}",
      kMany + "{% for i in range(900) %}{{ ns.l.append(dict(" + name + "=1)) }}{% endfor %}",
      kMany + "{% for i in range(900) %}{% set o = namespace() %}{% set o." + name +
          " = 1 %}{{ ns.l.append(o) }}{% endfor %}",
      kMany +
          "{% set t = 'k' * 9000 %}{% for i in range(900) %}{{ ns.l.append({}[t]) }}"
          "{% endfor %}",
      "{% macro m(n, " + name + "=1) %}{% if n > 0 %}{{ m(n - 1, " + name +
          "=2) }}{% endif %}{% endmacro %}{{ m(200) }}",
      // One step, much memory.
      "{{ ('x' * 300000)[5] }}{{ ('x' * 300000)[::2] | length }}",
      "{{ ('x' * 150000) is lower }}{{ ('x' * 150000) is upper }}",
      "{{ range(9000) | list | sort | unique | list | length }}",
      "{{ ('x' * 20000) | list | sort | length }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
      "{% endfor %}",
  };
  for (const std::string& source : templates)
    EXPECT_LE(MemoryOf(source), kMost) << source.substr(0, 200);
}

// A program by chance: values are made of each other and kept.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}

  std::string Program() {
    std::string out =
        "{% set a = 'some text' %}{% set b = [a, 1] %}{% set d = {'k': a} %}"
        "{% set ns = namespace(x='x', l=[1], d={}) %}{% macro f(p, q=2) %}" +
        Statement(2) + "{{ p }}{% endmacro %}";
    for (int i = 0; i < 12; ++i) out += Statement(3);
    return out;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  std::string Of(const std::vector<std::string>& choices) { return choices[Below(choices.size())]; }

  std::string Number() { return Of({"1", "3", "17", "200", "3000", "-1", "n"}); }

  std::string Value(int depth) {
    if (depth == 0) {
      return Of({"a", "b", "d", "ns.x", "ns.l", "ns.d", "messages", "'\u00fc\\n'", "1", "'k'",
                 "none", "missing", "ns"});
    }
    const auto value = [&] { return Value(depth - 1); };
    switch (Below(16)) {
      case 0:
        return "(" + value() + " ~ " + value() + ")";
      case 1:
        return "(" + value() + " * " + Number() + ")";
      case 2:
        return "[" + value() + ", " + value() + "]";
      case 3:
        return "{'k': " + value() + ", " + Of({"a", "ns.x", "'z' * 500"}) + ": " + value() + "}";
      case 4:
        return "(" + value() + " | " +
               Of({"string", "upper", "title", "trim", "list", "join", "tojson", "length", "sort",
                   "unique", "reverse", "items", "dictsort", "first", "last", "capitalize", "sum",
                   "min", "from_json"}) +
               ")";
      case 5:
        return "(" + value() + " | join(" + value() + "))";
      case 6:
        return "(" + value() + " | replace(" + value() + ", " + value() + "))";
      case 7:
        return "(" + value() + " | tojson(indent=" + Of({"2", "a", "900", "ns.x"}) +
               ", separators=[" + value() + ", " + value() + "]))";
      case 8:
        return "(" + value() + " | indent(" + Of({"4", "a", "ns.x"}) + ", true, true))";
      case 9:
        return value() + Of({"[1:]", "[::-1]", "[0]", "[-3:]", "[::7]", ".k"});
      case 10:
        return value() + Of({".split()", ".splitlines()", ".items()", ".strip()", ".upper()",
                             ".keys()", ".values()", ".title()"});
      case 11:
        return "dict(" + value() + ", q=" + value() + ")";
      case 12:
        return "f(" + value() + ")";
      case 13:
        return "('%s %s' % (" + value() + ", " + value() + "))";
      case 14:
        return "'{} {}'.format(" + value() + ", " + value() + ")";
      default:
        return "(" + value() + " + " + value() + ")";
    }
  }

  std::string Statement(int depth) {
    switch (Below(depth > 0 ? 9 : 5)) {
      case 0:
        return "{{ " + Value(3) + " }}";
      case 1:
        return "{% set " + Of({"a", "b", "d", "ns.x"}) + " = " + Value(3) + " %}";
      case 2:
        return "{{ ns.l.append(" + Value(2) + ") }}";
      case 3:
        return "{% set ns." + Of({"x", "l", "d", "y"}) + " = " + Value(2) + " %}";
      case 4:
        return "some text \u00e9\n";
      case 5:
        return "{% for i in " + Of({"range(50)", "a", "b", "ns.l", "d"}) + " %}" +
               Statement(depth - 1) + Statement(depth - 1) + "{% endfor %}";
      case 6:
        return "{% set " + Of({"a", "b"}) + " %}" + Statement(depth - 1) + "{{ a }}{% endset %}";
      case 7:
        return "{% filter " + Of({"upper", "trim", "indent(3)", "replace('x', 'xyz')"}) + " %}" +
               Statement(depth - 1) + "{% endfilter %}";
      default:
        return "{% if " + Value(1) + " %}" + Statement(depth - 1) + "{% else %}" +
               Statement(depth - 1) + "{% endif %}";
    }
  }

  std::mt19937_64 random_;
};

TEST(JinjaMemory, RandomTemplatesStayWithinTheirLimits) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const std::string source = Chance(seed).Program();
    EXPECT_LE(MemoryOf(source), kMost) << "seed " << seed << ": " << source;
  }
}

}  // namespace
}  // namespace bitshard
