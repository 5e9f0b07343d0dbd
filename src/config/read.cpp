// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/at.hpp"
#include "config/value.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <iterator>
#include <type_traits>

#include "cadenza/base/mask.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/experiment.hpp"
#include "config/machine_schema.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

// --- expected(field, spec...): the valid values of a key, in words ---

template <typename T>
std::string expected(const T&, const Interval<T>& range) {
  const std::string what = std::floating_point<T> ? "a number" : "an integer";
  // Without an upper bound only infinity is invalid, so the message says "finite".
  if (std::floating_point<T> && range.high == std::numeric_limits<T>::max()) {
    return fmt::format("a finite number {} {}", range.low_open ? ">" : ">=", range.low);
  }
  return fmt::format("{} in {}{}, {}{}", what, range.low_open ? '(' : '[', range.low, range.high,
                     range.high_open ? ')' : ']');
}

template <typename T>
std::string expected(const std::vector<T>&, const Interval<T>& range) {
  return fmt::format("a list, each {}", expected(T{}, range));
}

template <std::size_t N>
std::string expected(const std::array<double, N>&, const Numbers& range) {
  return fmt::format("a row of {} numbers, each {}", N, expected(double{}, range));
}

template <std::size_t N>
std::string expected(const std::vector<std::array<double, N>>&, const Numbers& range) {
  return fmt::format("a list of rows of {} numbers, each {}", N, expected(double{}, range));
}

std::string expected(const std::int64_t& servers, const ServerCount& spec) {
  return fmt::format("{} or {}, the number of dedicated ranks", kInPlace,
                     expected(servers, spec.ranks));
}

template <typename Choice>
requires std::is_enum_v<Choice> std::string expected(const std::vector<Choice>&) {
  return fmt::format("a list of {}", fmt::join(kWords<Choice>, ", "));
}

std::string expected(bool) {
  return "true or false";
}
std::string expected(const std::string&) {
  return "text";
}
std::string expected(const std::string& text, MayBeEmpty) {
  return expected(text);
}
std::string expected(std::int64_t value, const Bytes& bytes) {
  return expected(value, bytes.range) + ", or a size such as 40GB or 80GiB";
}
std::string expected(const std::vector<std::string>&) {
  return "text or a list of texts";
}

template <typename Choice>
requires std::is_enum_v<Choice> std::string expected(Choice) {
  return fmt::format("{}", fmt::join(kWords<Choice>, ", "));
}

template <typename Field, typename... Spec>
std::string expected(const Field& field, const OrAuto<Spec...>& choice) {
  return std::apply(
      [&](const Spec&... spec) { return fmt::format("{}, {}", kAuto, expected(field, spec...)); },
      choice.spec);
}

template <typename T, typename... Spec>
std::string expected(const std::optional<T>&, const AutoOr<Spec...>& choice) {
  return std::apply(
      [](const Spec&... spec) { return fmt::format("{}, {}", kAuto, expected(T{}, spec...)); },
      choice.spec);
}

// --- read(value, field, spec...): returns whether the value fits, and stores it in `field` ---

template <typename T>
requires std::is_arithmetic_v<T>
bool read(const Value& value, T& field, const Interval<T>& range) {
  if (value.kind != Value::Kind::scalar || value.quoted) return false;
  const char* const end = value.text.data() + value.text.size();
  T number{};
  const auto [rest, error] = std::from_chars(value.text.data(), end, number);
  if (error != std::errc{} || rest != end || !range.contains(number)) return false;
  field = number;
  return true;
}

bool read(const Value& value, std::int64_t& field, const Bytes& bytes) {
  if (read(value, field, bytes.range)) return true;
  if (value.kind != Value::Kind::scalar || value.quoted) return false;
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits{
      {{"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}};
  for (const auto& [unit, size] : kUnits) {
    if (!value.text.ends_with(unit)) continue;
    const char* const end = value.text.data() + value.text.size() - unit.size();
    double count = 0;
    const auto [rest, error] = std::from_chars(value.text.data(), end, count);
    if (error != std::errc{} || rest != end) return false;
    const double number = std::round(count * size);
    // The comparison is false for numbers that are not finite, too.
    if (!(number >= 0 && number <= static_cast<double>(bytes.range.high))) return false;
    field = static_cast<std::int64_t>(number);
    return bytes.range.contains(field);
  }
  return false;
}

bool read(const Value& value, bool& field) {
  field = value.text == "true";
  return value.kind == Value::Kind::scalar && !value.quoted && (field || value.text == "false");
}

bool read(const Value& value, std::string& field) {
  field = value.text;
  return value.kind == Value::Kind::scalar && !field.empty();
}

bool read(const Value& value, std::string& field, MayBeEmpty) {
  field = value.text;
  return value.kind == Value::Kind::scalar;
}

template <typename Choice>
requires std::is_enum_v<Choice>
bool read(const Value& value, Choice& field) {
  const auto at = std::ranges::find(kWords<Choice>, value.text);
  if (value.kind != Value::Kind::scalar || at == kWords<Choice>.end()) return false;
  field = static_cast<Choice>(at - kWords<Choice>.begin());
  return true;
}

bool read(const Value& value, std::int64_t& field, const ServerCount& spec) {
  if (value.kind == Value::Kind::scalar && value.text == kInPlace) {
    field = 0;
    return true;
  }
  return read(value, field, spec.ranks);
}

template <typename Field, typename... Spec>
bool read(const Value& value, Field& field, const OrAuto<Spec...>& choice) {
  choice.open = value.kind == Value::Kind::scalar && value.text == kAuto;
  if (choice.open) return true;
  return std::apply([&](const Spec&... spec) { return read(value, field, spec...); }, choice.spec);
}

template <typename T, typename... Spec>
bool read(const Value& value, std::optional<T>& field, const AutoOr<Spec...>& choice) {
  field.reset();
  if (value.kind == Value::Kind::scalar && value.text == kAuto) return true;
  T given{};
  if (!std::apply([&](const Spec&... spec) { return read(value, given, spec...); }, choice.spec)) {
    return false;
  }
  field = given;
  return true;
}

/// Reads a value, or throws Error(usage) with what was found and what is valid.
template <typename Field, typename... Spec>
void read_or_fail(const Value& value, const std::string& path, Field& field, const Spec&... spec) {
  if (read(value, field, spec...)) return;
  std::string hint;
  if constexpr (std::is_enum_v<Field>) {
    const std::vector<std::string> words(kWords<Field>.begin(), kWords<Field>.end());
    if (value.kind == Value::Kind::scalar && words.size() > 1) {
      hint = nearest_hint(value.text, words);
    }
  }
  fail_at(value.place, path,
          fmt::format("found {}{}; valid: {}", found(value), hint, expected(field, spec...)));
}

template <std::size_t N>
void read_or_fail(const Value& value, const std::string& path, std::array<double, N>& field,
                  const Numbers& range) {
  if (value.kind != Value::Kind::list || value.items.size() != N) {
    const std::string what = value.kind == Value::Kind::list
                                 ? fmt::format("a row of {}", value.items.size())
                                 : found(value);
    fail_at(value.place, path, fmt::format("found {}; valid: {}", what, expected(field, range)));
  }
  for (std::size_t i = 0; i < N; ++i) {
    read_or_fail(value.items[i], fmt::format("{}[{}]", path, i), field[i], range);
  }
}

template <typename T, typename... Spec>
void read_or_fail(const Value& value, const std::string& path, std::vector<T>& field,
                  const Spec&... spec) {
  field.clear();
  if (std::same_as<T, std::string> && value.kind == Value::Kind::scalar) {
    read_or_fail(value, path, field.emplace_back(), spec...);
    return;
  }
  if (value.kind != Value::Kind::list) {
    fail_at(value.place, path,
            fmt::format("found {}; valid: {}", found(value), expected(field, spec...)));
  }
  for (const Value& item : value.items) {
    const std::string name = fmt::format("{}[{}]", path, field.size());
    read_or_fail(item, name, field.emplace_back(), spec...);
  }
}

/// The visitor that reads one block.
class Reader {
 public:
  /// @param block  null where the file leaves it out
  Reader(const Value& root, const Value* block, std::string path)
      : root_(root), block_(block), path_(std::move(path)) {}

  template <typename Field, typename... Spec>
  void key(const char* name, Field& field, const Spec&... spec) {
    if (const Value* value = find(name)) {
      read_or_fail(*value, join_path(path_, name), field, spec...);
    }
  }

  template <typename Field, typename... Spec>
  void required(const char* name, Field& field, const char* meaning, const Spec&... spec) {
    if (find(name) == nullptr) {
      const std::string path = join_path(path_, name);
      fail_at(place_of(root_, path), path,
              fmt::format("found nothing, but it is required ({}); valid: {}", meaning,
                          expected(field, spec...)));
    }
    key(name, field, spec...);
  }

  void stand_in(const char*) {}

  template <typename Struct>
  void block(const char* name, Struct& fields) {
    const Value* value = find(name);
    const std::string path = join_path(path_, name);
    // A block without keys is read as nothing, and valid.
    if (value != nullptr && value->kind != Value::Kind::block &&
        value->kind != Value::Kind::nothing) {
      fail_at(value->place, path, fmt::format("found {}; valid: a block of keys", found(*value)));
    }
    Reader inner(root_, value, path);
    describe(inner, fields);
  }

  template <typename Struct>
  void blocks(const char* name, std::vector<Struct>& list) {
    const Value* value = find(name);
    if (value == nullptr) return;
    const std::string path = join_path(path_, name);
    if (value->kind != Value::Kind::list) {
      fail_at(value->place, path, fmt::format("found {}; valid: a list of blocks", found(*value)));
    }
    list.clear();
    for (const Value& item : value->items) {
      const std::string own = fmt::format("{}[{}]", path, list.size());
      if (item.kind != Value::Kind::block) {
        fail_at(item.place, own, fmt::format("found {}; valid: a block of keys", found(item)));
      }
      Reader inner(root_, &item, own);
      describe(inner, list.emplace_back());
    }
  }

 private:
  const Value* find(const char* name) const {
    return block_ == nullptr ? nullptr : block_->find(name);
  }

  const Value& root_;
  const Value* block_;
  std::string path_;
};

/// Lets placement auto choose all keys that it can, or none.
void leave_open(Experiment& experiment, bool open) {
  experiment.parallel.open = {open, open, open, open, open};
  experiment.attention.open = {open, open};
  experiment.run.recompute_open = open;
  experiment.batch.longest_open = open;
}

template <typename File>
File read_file(const Value& root, File file = {}) {
  Reader reader(root, &root, "");
  describe(reader, file);
  return file;
}

}  // namespace

Machine read_machine(const Value& root) {
  return read_file<Machine>(root);
}

HeadBudget read_budget(const Value& head, const std::string& path, const HeadBudget& usual) {
  HeadBudget budget = usual;
  Reader reader(head, &head, path);
  describe(reader, budget);
  return budget;
}

Experiment read_experiment(const Value& root) {
  Experiment nothing_said;
  leave_open(nothing_said, true);
  Experiment experiment = read_file(root, nothing_said);
  if (experiment.attention.placement != PlacementKind::automatic) leave_open(experiment, false);
  if (experiment.model.kv_heads == 0) experiment.model.kv_heads = experiment.model.heads;
  if (experiment.batch.microbatch_open) experiment.batch.microbatch = experiment.data.max_document;
  if (experiment.data.max_document == 0) experiment.data.max_document = experiment.batch.microbatch;
  return experiment;
}

namespace {

/// The positions of arXiv 2402.17463, section 3. With stride s and w local tokens the largest is
/// s + w - 1; Megatron-LM has s + w and, for older chunks, at most the last of the next chunk.
DualChunk dual_chunk_of(const Attention& attention) {
  const std::int64_t stride = attention.chunk - attention.local;
  if (attention.cap == ChunkCap::paper) return {stride, attention.chunk - 1, attention.chunk - 1};
  return {stride, attention.chunk, std::min(2 * stride - 1, attention.chunk)};
}

/// Sets the largest budgets of all heads.
void set_budgets(const SparseAttention& sparse, SparseRule& rule) {
  rule.columns = sparse.columns;
  rule.slashes = sparse.slashes;
  rule.top_p = sparse.top_p;
  rule.sinks = sparse.sinks;
  rule.window = sparse.window;
  for (const std::vector<HeadBudget>& layer : sparse.heads) {
    for (const HeadBudget& head : layer) {
      rule.columns = std::max(rule.columns, head.columns);
      rule.slashes = std::max(rule.slashes, head.slashes);
    }
  }
}

}  // namespace

std::vector<std::int64_t> Attention::capacities(std::int64_t ranks) const {
  if (capacity.empty()) return {};
  std::vector<std::int64_t> found(static_cast<std::size_t>(ranks), kFullCapacity);
  for (const auto& [rank, percent] : capacity) {
    if (rank >= static_cast<double>(ranks)) continue;
    found[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(percent);
  }
  return found;
}

bool Attention::is_full(std::int64_t layer) const {
  if (layers.empty() || kind == AttentionKind::full) return false;
  return layers[at(layer % std::ssize(layers))] == AttentionKind::full;
}

std::optional<double> held_out_share(const Data& data) {
  if (data.validation.size() != 1) return std::nullopt;
  const std::string& text = data.validation.front();
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(share) : std::nullopt;
}

std::int64_t Attention::full_layers(Range range) const {
  std::int64_t count = 0;
  for (std::int64_t layer = range.begin; layer < range.end; ++layer) count += is_full(layer);
  return count;
}

Mask Attention::mask() const {
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::vertical_slash:
    case AttentionKind::xattention:
      return {};
    case AttentionKind::window:
      return Mask::window(window, sinks);
    case AttentionKind::prefix:
      return Mask::prefix(prefix);
    case AttentionKind::dual_chunk:
      break;
  }
  return Mask::dual_chunk(dual_chunk_of(*this));
}

SparseRule Attention::sparse_rule() const {
  SparseRule rule;
  const std::optional<SparseKind> chosen = traits_of(kind).sparse;
  if (!chosen) return rule;
  rule.kind = *chosen;
  rule.block = sparse.block.value_or(traits_of(*chosen).block);
  rule.dense_below = sparse.dense_below;
  switch (*chosen) {
    case SparseKind::vertical_slash:
      set_budgets(sparse, rule);
      break;
    case SparseKind::xattention:
      rule.stride = sparse.stride;
      rule.threshold = sparse.threshold;
      break;
  }
  return rule;
}

SparseRule Attention::sparse_rule(std::int64_t layer, std::int64_t head) const {
  SparseRule rule = sparse_rule();
  if (!traits_of(kind).takes("attention.sparse.budgets")) return rule;
  const bool named = layer < std::ssize(sparse.heads) && head < std::ssize(sparse.heads[at(layer)]);
  const HeadBudget budget = named ? sparse.heads[at(layer)][at(head)]
                                  : HeadBudget{sparse.columns, sparse.slashes, sparse.top_p};
  rule.columns = budget.columns;
  rule.slashes = budget.slashes;
  rule.top_p = budget.top_p;
  return rule;
}

}  // namespace cadenza::config
