// The filters that take lists, dicts and other sequences.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_filters.h"
#include "coordinator/text/jinja_operators.h"
#include "coordinator/text/jinja_tests.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

bool IsTrue(const Value* value) { return value != nullptr && value->Truthy(); }

// item.a.b for the attribute "a.b"; numbers index.
absl::StatusOr<Value> Attribute(Value item, const Value& attribute, JinjaHeap* heap) {
  if (!attribute.is_string()) return JinjaItem(item, attribute, heap);
  std::string_view path = attribute.string();
  while (true) {
    const std::string part(path.substr(0, path.find('.')));
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    const Value key = number ? Value::Int(std::stol(part)) : Value::String(part);
    RETURN_IF_ERROR(heap->ChargeStep());
    ASSIGN_OR_RETURN(item, JinjaItem(item, key, heap));
    if (part.size() == path.size()) return item;
    path.remove_prefix(part.size() + 1);
  }
}

template <bool kLast>
absl::StatusOr<Value> End(const Value& input, const Arguments&, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  if (items.empty()) return Value::MakeUndefined(kLast ? "last of nothing" : "first of nothing");
  return kLast ? items.back() : items.front();
}

absl::StatusOr<Value> List(const Value& input, const Arguments&, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(std::vector<Value> items, JinjaIterate(input, heap));
  return Value::List(heap->NewList(std::move(items)));
}

absl::StatusOr<Value> Reverse(const Value& input, const Arguments&, JinjaHeap* heap) {
  if (input.is_string()) return JinjaSlice(input, std::nullopt, std::nullopt, -1, heap);
  ASSIGN_OR_RETURN(std::vector<Value> items, JinjaIterate(input, heap));
  std::reverse(items.begin(), items.end());
  return Value::List(heap->NewList(std::move(items)));
}

absl::StatusOr<Value> Pairs(const JinjaDict& dict, JinjaHeap* heap) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) {
    RETURN_IF_ERROR(heap->ChargeItems(2));  // the pair is one, too
    ASSIGN_OR_RETURN(Value name, heap->NewKey(dict, key));
    pairs.push_back(Value::List(heap->NewList({std::move(name), value}, /*is_tuple=*/true)));
  }
  return Value::List(heap->NewList(std::move(pairs)));
}

absl::StatusOr<Value> Items(const Value& input, const Arguments&, JinjaHeap* heap) {
  if (input.is_undefined()) return Value::List(heap->NewList());
  if (!input.is_dict() || input.dict().is_namespace) {
    return absl::InvalidArgumentError("Can only get item pairs from a mapping.");
  }
  return Pairs(input.dict(), heap);
}

// What values are ordered by: texts without their case, unless it matters.
absl::StatusOr<Value> OrderKey(const Value& value, bool case_sensitive, JinjaHeap* heap) {
  if (case_sensitive || !value.is_string()) return value;
  return JinjaChangeCase(value.text(), /*upper=*/false, heap);
}

// The places of `keys` in ascending order, equal ones in theirs.
absl::StatusOr<std::vector<size_t>> Order(const std::vector<Value>& keys, bool reverse,
                                          JinjaHeap* heap) {
  RETURN_IF_ERROR(heap->ChargeBytes(2 * keys.size() * sizeof(size_t)));
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status failed;
  // A comparison that fails calls the two equal from then on: the order stays a valid one.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!failed.ok()) return false;
    absl::Status charged = heap->ChargeStep();
    const absl::StatusOr<bool> less =
        reverse ? JinjaLess(keys[b], keys[a], heap) : JinjaLess(keys[a], keys[b], heap);
    if (!charged.ok()) failed = charged;
    if (!less.ok()) failed = less.status();
    return failed.ok() && *less;
  });
  RETURN_IF_ERROR(failed);
  return order;
}

absl::StatusOr<std::vector<Value>> OrderKeys(const std::vector<Value>& items,
                                             const Value* attribute, bool case_sensitive,
                                             JinjaHeap* heap) {
  RETURN_IF_ERROR(heap->ChargeBytes(items.size() * sizeof(Value)));
  std::vector<Value> keys;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      ASSIGN_OR_RETURN(key, Attribute(item, *attribute, heap));
    }
    ASSIGN_OR_RETURN(key, OrderKey(key, case_sensitive, heap));
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::StatusOr<Value> Sort(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  ASSIGN_OR_RETURN(const std::vector<Value> keys,
                   OrderKeys(items, arguments.Get(2, "attribute"),
                             IsTrue(arguments.Get(1, "case_sensitive")), heap));
  ASSIGN_OR_RETURN(const std::vector<size_t> order,
                   Order(keys, IsTrue(arguments.Get(0, "reverse")), heap));
  std::vector<Value> sorted;
  for (const size_t at : order) sorted.push_back(items[at]);
  return Value::List(heap->NewList(std::move(sorted)));
}

absl::StatusOr<Value> DictSort(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  if (!input.is_dict()) return absl::InvalidArgumentError("filter 'dictsort' takes a dict");
  int64_t by = 0;
  if (const Value* given = arguments.Get(1, "by")) {
    if (!given->is_string() || (given->string() != "key" && given->string() != "value")) {
      return absl::InvalidArgumentError("You can only sort by either \"key\" or \"value\"");
    }
    by = given->string() == "value" ? 1 : 0;
  }
  ASSIGN_OR_RETURN(const Value pairs, Pairs(input.dict(), heap));
  const Value place = Value::Int(by);
  ASSIGN_OR_RETURN(
      const std::vector<Value> keys,
      OrderKeys(pairs.list().items, &place, IsTrue(arguments.Get(0, "case_sensitive")), heap));
  ASSIGN_OR_RETURN(const std::vector<size_t> order,
                   Order(keys, IsTrue(arguments.Get(2, "reverse")), heap));
  std::vector<Value> sorted;
  for (const size_t at : order) sorted.push_back(pairs.list().items[at]);
  return Value::List(heap->NewList(std::move(sorted)));
}

template <bool kMax>
absl::StatusOr<Value> Extreme(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  if (items.empty()) return Value::MakeUndefined("No aggregated item, sequence was empty.");
  ASSIGN_OR_RETURN(const std::vector<Value> keys,
                   OrderKeys(items, arguments.Get(1, "attribute"),
                             IsTrue(arguments.Get(0, "case_sensitive")), heap));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool better, kMax ? JinjaLess(keys[best], keys[i], heap)
                                             : JinjaLess(keys[i], keys[best], heap));
    if (better) best = i;
  }
  return items[best];
}

absl::StatusOr<Value> Unique(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  ASSIGN_OR_RETURN(const std::vector<Value> keys,
                   OrderKeys(items, arguments.Get(1, "attribute"),
                             IsTrue(arguments.Get(0, "case_sensitive")), heap));
  std::vector<Value> kept;
  std::vector<size_t> places;
  for (size_t i = 0; i < items.size(); ++i) {
    bool seen = false;
    for (size_t j = 0; j < places.size() && !seen; ++j) {
      ASSIGN_OR_RETURN(seen, JinjaEquals(keys[places[j]], keys[i], heap));
    }
    if (seen) continue;
    places.push_back(i);
    kept.push_back(items[i]);
  }
  return Value::List(heap->NewList(std::move(kept)));
}

absl::StatusOr<Value> Sum(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  const Value* attribute = arguments.Get(0, "attribute");
  const Value* start = arguments.Get(1, "start");
  Value sum = start == nullptr ? Value::Int(0) : *start;
  for (Value item : items) {
    if (attribute != nullptr && !attribute->is_none()) {
      ASSIGN_OR_RETURN(item, Attribute(item, *attribute, heap));
    }
    ASSIGN_OR_RETURN(sum, JinjaBinary(JinjaOp::kAdd, sum, item, heap));
  }
  return sum;
}

// map(attribute='a'), map('filter', arguments).
absl::StatusOr<Value> Map(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(std::vector<Value> items, JinjaIterate(input, heap));
  const Value* attribute = arguments.Get(SIZE_MAX, "attribute");
  const Value* fallback = arguments.Get(SIZE_MAX, "default");
  const JinjaFilter* filter = nullptr;
  Arguments rest = arguments;
  if (attribute == nullptr) {
    if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
      return absl::InvalidArgumentError("map requires a filter argument");
    }
    const std::string& name = arguments.positional[0].string();
    filter = FindJinjaFilter(name);
    if (filter == nullptr || filter->run == &Map) {  // not itself: texts can be mapped for ever
      return absl::UnimplementedError(Concat("map('", name, "') is not supported"));
    }
    rest.positional.erase(rest.positional.begin());
    if (!filter->any_positional) {
      RETURN_IF_ERROR(rest.Check(name, filter->arguments.size(), filter->arguments));
    }
  }
  for (Value& item : items) {
    RETURN_IF_ERROR(heap->ChargeStep());
    if (filter != nullptr) {
      ASSIGN_OR_RETURN(item, filter->run(item, rest, heap));
      continue;
    }
    ASSIGN_OR_RETURN(item, Attribute(item, *attribute, heap));
    if (item.is_undefined() && fallback != nullptr) item = *fallback;
  }
  return Value::List(heap->NewList(std::move(items)));
}

// select('test', arguments), selectattr('attribute', 'test', arguments); without a test: what is
// true.
template <bool kAttribute, bool kKeep>
absl::StatusOr<Value> Select(const Value& input, const Arguments& arguments, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, JinjaIterate(input, heap));
  Arguments rest = arguments;
  Value attribute;
  if (kAttribute) {
    if (rest.positional.empty()) {
      return absl::InvalidArgumentError("Missing parameter for attribute name");
    }
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  JinjaTestFn test = nullptr;
  if (!rest.positional.empty()) {
    const Value name = rest.positional[0];
    if (name.is_string()) test = FindJinjaTest(name.string());
    if (test == nullptr) {
      return absl::UnimplementedError(
          Concat("test '", name.is_string() ? name.string() : "?", "' is not supported"));
    }
    rest.positional.erase(rest.positional.begin());
  }
  std::vector<Value> kept;
  for (const Value& item : items) {
    RETURN_IF_ERROR(heap->ChargeStep());
    Value looked_at = item;
    if (kAttribute) {
      ASSIGN_OR_RETURN(looked_at, Attribute(item, attribute, heap));
    }
    bool holds = looked_at.Truthy();
    if (test != nullptr) {
      ASSIGN_OR_RETURN(holds, test(looked_at, rest, heap));
    }
    if (holds == kKeep) kept.push_back(item);
  }
  return Value::List(heap->NewList(std::move(kept)));
}

}  // namespace

const std::vector<JinjaFilter>& JinjaSequenceFilters() {
  static const auto& filters = *new std::vector<JinjaFilter>{
      {"dictsort", DictSort, {"case_sensitive", "by", "reverse"}},
      {"first", End<false>, {}},
      {"items", Items, {}},
      {"last", End<true>, {}},
      {"list", List, {}},
      {"map", Map, {"attribute", "default"}, /*any_positional=*/true},
      {"max", Extreme<true>, {"case_sensitive", "attribute"}},
      {"min", Extreme<false>, {"case_sensitive", "attribute"}},
      {"reject", Select<false, false>, {}, /*any_positional=*/true},
      {"rejectattr", Select<true, false>, {}, /*any_positional=*/true},
      {"reverse", Reverse, {}},
      {"select", Select<false, true>, {}, /*any_positional=*/true},
      {"selectattr", Select<true, true>, {}, /*any_positional=*/true},
      {"sort", Sort, {"reverse", "case_sensitive", "attribute"}},
      {"sum", Sum, {"attribute", "start"}},
      {"unique", Unique, {"case_sensitive", "attribute"}},
  };
  return filters;
}

}  // namespace bitshard
