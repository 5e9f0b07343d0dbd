// SPDX-License-Identifier: Apache-2.0
#include "config/check.hpp"

#include <algorithm>
#include <concepts>
#include <string>
#include <vector>

#include "cadenza/config/load.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

/// Treatment of a key that a choice ignores and that does not have its default value, or (slow) of
/// a value that is far slower with that choice than another one.
enum class Verdict { told, refused, slow };

struct Belonging {
  const char* key;
  bool (*is_set)(const Experiment&);  ///< it has another value than the default
  bool (*is_used)(const Experiment&);
  std::string (*choice)(const Experiment&);  ///< the deciding choice: "attention.kind = full"
  std::string with;  ///< choices that use it: "kind window"; of a slow one why, and what is faster
  Verdict verdict = Verdict::told;
};

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(word(value));
  } else {
    return fmt::format("{}", value);
  }
}

// A key has the name of its field.
#define CADENZA_KEY(path) \
#path, [](const Experiment& e) {               \
    static const Experiment defaults;            \
    return !(e.path == defaults.path);           \
  }
#define CADENZA_CHOICE(path) \
  [](const Experiment& e) { return fmt::format(#path " = {}", shown(e.path)); }
#define CADENZA_USED(condition) [](const Experiment& e) -> bool { return condition; }
// The row of a key that only some kinds of attention take.
#define CADENZA_OF_KIND(path)                                                  \
  {                                                                            \
    CADENZA_KEY(path), CADENZA_USED(traits_of(e.attention.kind).takes(#path)), \
        CADENZA_CHOICE(attention.kind), kinds_with(#path), Verdict::refused    \
  }

// The row of a key that only one kind of rotary scaling takes.
#define CADENZA_OF_SCALING(path, of)                                                   \
  {                                                                                    \
    CADENZA_KEY(path), CADENZA_USED(e.model.rope.scaling.kind == RopeScalingKind::of), \
        CADENZA_CHOICE(model.rope.scaling.kind), "kind " #of                           \
  }

// The rows of a key that only some tasks of source retrieval take.
#define CADENZA_OF_TASK(path, condition, tasks)                                            \
  {CADENZA_KEY(path), CADENZA_USED(e.data.source == Source::retrieval),                    \
   CADENZA_CHOICE(data.source), "source retrieval"},                                       \
  {                                                                                        \
    CADENZA_KEY(path), CADENZA_USED(condition), CADENZA_CHOICE(data.retrieval.task), tasks \
  }

constexpr const char* kWithFacts = "task needles, values or variables";

bool is_automatic(const Experiment& e) {
  return e.attention.placement == PlacementKind::automatic;
}

/// "a, b or c"
std::string either(std::vector<std::string_view> words) {
  const std::string_view last = words.back();
  words.pop_back();
  return fmt::format("{}{}{}", fmt::join(words, ", "), words.empty() ? "" : " or ", last);
}

/// "kind vertical_slash or xattention"
std::string kinds_with(std::string_view key) {
  return "kind " + either(words_in(kAttentionKinds,
                                   [&](const AttentionTraits& kind) { return kind.takes(key); }));
}

using IsSo = bool (*)(const PlacementTraits&);

bool is_placed(const Experiment& e, IsSo is_so) {
  return is_automatic(e) || is_so(traits_of(e.attention.placement));
}

/// "placement all_gather, ulysses_ring, double_ring or cad"
std::string placements(IsSo are_so) {
  return "placement " + either(words_in(kPlacements, are_so));
}

bool moves_attention(const PlacementTraits& p) {
  return p.reach == Reach::pool;
}
bool leaves_sharding_open(const PlacementTraits& p) {
  return p.shares == Shares::given && p.reach != Reach::open;
}
bool has_blocks(const PlacementTraits& p) {
  return p.reach == Reach::pool || p.shares == Shares::block_striped;
}
bool gathers_keys(const PlacementTraits& p) {
  return p.keys == KeyPath::gather;
}
bool splits_some_heads(const PlacementTraits& p) {
  return p.keys == KeyPath::head_groups;
}
bool passes_keys_on(const PlacementTraits& p) {
  return p.keys == KeyPath::ring;
}

bool shares_sequences(const Experiment& e) {
  return e.parallel.context > 1 || e.parallel.open.context;
}

/// Whether documents get ranks of a context group by their cost.
bool shares_by_cost(const Experiment& e) {
  return shares_sequences(e) && (is_automatic(e) || e.attention.shares_by_cost());
}

/// Whether documents, or all of a microbatch as one, are cut into equal chunks.
bool cuts_evenly(const Experiment& e) {
  const Shares shares = e.attention.shares();
  return shares_sequences(e) && (shares == Shares::contiguous || shares == Shares::zigzag);
}

bool has_stages(const Experiment& e) {
  return e.parallel.pipeline > 1 || e.parallel.open.pipeline;
}

bool reads_files(const Experiment& e) {
  return e.data.source == Source::text || e.data.source == Source::tokens;
}

/// Sparse kinds choose blocks of queries and keys, of which `striped` gives every rank a few rows.
bool splits_blocks(const Experiment& e) {
  return shares_sequences(e) && traits_of(e.attention.kind).sparse &&
         traits_of(e.attention.placement).shares == Shares::striped;
}

template <typename... Distributions>
bool has_lengths(const Experiment& e, Distributions... distributions) {
  return !reads_files(e) && ((e.data.lengths.distribution == distributions) || ...);
}

/// The choice that decides whether a key of data.lengths is used.
std::string lengths_choice(const Experiment& e) {
  if (reads_files(e)) return fmt::format("data.source = {}", word(e.data.source));
  return fmt::format("data.lengths.distribution = {}", word(e.data.lengths.distribution));
}

/// The choice that decides how a context group shares tokens.
std::string sharing_choice(const Experiment& e) {
  if (!shares_sequences(e)) return fmt::format("parallel.context = {}", e.parallel.context);
  return fmt::format("attention.placement = {}", word(e.attention.placement));
}

/// The choice that decides what is cut into chunks.
std::string cutting_choice(const Experiment& e) {
  const bool follows = leaves_sharding_open(traits_of(e.attention.placement));
  if (!shares_sequences(e) || !follows || !e.attention.sharding) return sharing_choice(e);
  return fmt::format("attention.sharding = {}", word(*e.attention.sharding));
}

std::string documents_choice(const Experiment& e) {
  if (!has_lengths(e, Distribution::histogram)) return lengths_choice(e);
  return fmt::format("data.lengths.rule = {}", word(e.data.lengths.rule));
}

bool forces_places(const Experiment& e) {
  const SparseAttention& sparse = e.attention.sparse;
  return !traits_of(e.attention.kind).takes("attention.sparse.top_p") || sparse.top_p == 0 ||
         !sparse.budgets.empty();
}

using enum Verdict;
using enum Distribution;

/// The choices that use each key. A key that several choices ignore has a row for each of them.
const Belonging kBelongings[] = {
    {CADENZA_KEY(model.rope.scaling.factor),
     CADENZA_USED(e.model.rope.scaling.kind != RopeScalingKind::none),
     CADENZA_CHOICE(model.rope.scaling.kind), "kind linear, yarn or llama3", refused},
    {CADENZA_KEY(model.rope.scaling.original_context),
     CADENZA_USED(e.model.rope.scaling.kind != RopeScalingKind::none),
     CADENZA_CHOICE(model.rope.scaling.kind), "kind yarn or llama3", refused},
    {CADENZA_KEY(model.rope.scaling.original_context),
     CADENZA_USED(e.model.rope.scaling.kind != RopeScalingKind::linear),
     CADENZA_CHOICE(model.rope.scaling.kind), "kind yarn or llama3"},
    CADENZA_OF_SCALING(model.rope.scaling.beta_fast, yarn),
    CADENZA_OF_SCALING(model.rope.scaling.beta_slow, yarn),
    CADENZA_OF_SCALING(model.rope.scaling.mscale, yarn),
    CADENZA_OF_SCALING(model.rope.scaling.mscale_all_dim, yarn),
    {CADENZA_KEY(model.rope.scaling.mscale),
     CADENZA_USED(e.model.rope.scaling.attention_factor == 0),
     CADENZA_CHOICE(model.rope.scaling.attention_factor), "attention_factor 0"},
    {CADENZA_KEY(model.rope.scaling.mscale_all_dim),
     CADENZA_USED(e.model.rope.scaling.attention_factor == 0),
     CADENZA_CHOICE(model.rope.scaling.attention_factor), "attention_factor 0"},
    CADENZA_OF_SCALING(model.rope.scaling.attention_factor, yarn),
    CADENZA_OF_SCALING(model.rope.scaling.truncate, yarn),
    CADENZA_OF_SCALING(model.rope.scaling.low_frequency, llama3),
    CADENZA_OF_SCALING(model.rope.scaling.high_frequency, llama3),

    {CADENZA_KEY(data.path), CADENZA_USED(reads_files(e)), CADENZA_CHOICE(data.source),
     "source text or tokens"},
    {CADENZA_KEY(data.weights), CADENZA_USED(reads_files(e)), CADENZA_CHOICE(data.source),
     "source text or tokens"},
    {CADENZA_KEY(data.dtype), CADENZA_USED(e.data.source == Source::tokens),
     CADENZA_CHOICE(data.source), "source tokens"},
    {CADENZA_KEY(data.document_end), CADENZA_USED(e.data.source == Source::tokens),
     CADENZA_CHOICE(data.source), "source tokens"},
    {CADENZA_KEY(data.documents),
     CADENZA_USED(has_lengths(e, constant, uniform, lognormal, pareto, Distribution::list) ||
                  (has_lengths(e, histogram) && e.data.lengths.rule == DrawRule::independent)),
     documents_choice,
     "source synthetic or retrieval, distributions other than file, and rule independent"},
    {CADENZA_KEY(data.lengths.distribution), CADENZA_USED(!reads_files(e)),
     CADENZA_CHOICE(data.source), "source synthetic or retrieval"},
    {CADENZA_KEY(data.lengths.min), CADENZA_USED(has_lengths(e, uniform, lognormal, pareto)),
     lengths_choice, "distribution uniform, lognormal or pareto"},
    {CADENZA_KEY(data.lengths.max), CADENZA_USED(has_lengths(e, uniform, lognormal, pareto)),
     lengths_choice, "distribution uniform, lognormal or pareto"},
    {CADENZA_KEY(data.lengths.median), CADENZA_USED(has_lengths(e, constant, lognormal)),
     lengths_choice, "distribution constant or lognormal"},
    {CADENZA_KEY(data.lengths.sigma), CADENZA_USED(has_lengths(e, lognormal)), lengths_choice,
     "distribution lognormal"},
    {CADENZA_KEY(data.lengths.alpha), CADENZA_USED(has_lengths(e, pareto)), lengths_choice,
     "distribution pareto"},
    {CADENZA_KEY(data.lengths.values), CADENZA_USED(has_lengths(e, Distribution::list)),
     lengths_choice, "distribution list"},
    {CADENZA_KEY(data.lengths.path), CADENZA_USED(has_lengths(e, histogram, Distribution::file)),
     lengths_choice, "distribution histogram or file"},
    {CADENZA_KEY(data.lengths.rule), CADENZA_USED(has_lengths(e, histogram)), lengths_choice,
     "distribution histogram"},
    {CADENZA_KEY(data.lengths.stretch), CADENZA_USED(has_lengths(e, histogram)), lengths_choice,
     "distribution histogram"},
    {CADENZA_KEY(data.retrieval.task), CADENZA_USED(e.data.source == Source::retrieval),
     CADENZA_CHOICE(data.source), "source retrieval"},
    CADENZA_OF_TASK(
        data.retrieval.answers,
        e.data.retrieval.task == RetrievalTask::values || !e.data.retrieval.tells_facts(),
        "task values, common_words or frequent_words"),
    CADENZA_OF_TASK(data.retrieval.hops, e.data.retrieval.task == RetrievalTask::variables,
                    "task variables"),
    CADENZA_OF_TASK(data.retrieval.facts, e.data.retrieval.tells_facts(), kWithFacts),
    CADENZA_OF_TASK(data.retrieval.questions, e.data.retrieval.tells_facts(), kWithFacts),
    CADENZA_OF_TASK(data.retrieval.depth_min, e.data.retrieval.tells_facts(), kWithFacts),
    CADENZA_OF_TASK(data.retrieval.depth_max, e.data.retrieval.tells_facts(), kWithFacts),
    CADENZA_OF_TASK(data.retrieval.phrase, e.data.retrieval.tells_facts(), kWithFacts),

    {CADENZA_KEY(batch.longest), CADENZA_USED(packs_by_cost(e.batch.packing) || shares_by_cost(e)),
     CADENZA_CHOICE(batch.packing),
     "packing balanced or pooled, placement dynamic, and sharding dynamic or whole"},
    {CADENZA_KEY(batch.break_even),
     CADENZA_USED(packs_by_cost(e.batch.packing) || shares_by_cost(e)),
     CADENZA_CHOICE(batch.packing),
     "packing balanced or pooled, placement dynamic, and sharding dynamic or whole"},
    {CADENZA_KEY(batch.outliers), CADENZA_USED(e.batch.packing == Packing::balanced),
     CADENZA_CHOICE(batch.packing), "packing balanced", refused},

    {CADENZA_KEY(parallel.schedule), CADENZA_USED(has_stages(e)), CADENZA_CHOICE(parallel.pipeline),
     "parallel.pipeline above 1"},
    {CADENZA_KEY(parallel.shard),
     CADENZA_USED(e.parallel.data* e.parallel.context > 1 || is_automatic(e)),
     CADENZA_CHOICE(parallel.data), "parallel.data or parallel.context above 1"},
    {CADENZA_KEY(run.residual), CADENZA_USED(e.run.dtype == Dtype::bfloat16),
     CADENZA_CHOICE(run.dtype), "run.dtype bfloat16"},
    {CADENZA_KEY(parallel.tensor_sums), CADENZA_USED(e.parallel.tensor > 1 || is_automatic(e)),
     CADENZA_CHOICE(parallel.tensor), "parallel.tensor above 1"},

    {CADENZA_KEY(attention.layers), CADENZA_USED(e.attention.kind != AttentionKind::full),
     CADENZA_CHOICE(attention.kind), "another attention.kind than full", refused},
    CADENZA_OF_KIND(attention.window),
    CADENZA_OF_KIND(attention.sinks),
    CADENZA_OF_KIND(attention.prefix),
    CADENZA_OF_KIND(attention.chunk),
    CADENZA_OF_KIND(attention.local),
    CADENZA_OF_KIND(attention.cap),
    {CADENZA_KEY(attention.kind),
     CADENZA_USED(e.attention.kind != AttentionKind::prefix || e.attention.prefix > 0),
     CADENZA_CHOICE(attention.prefix), "attention.prefix above 0, as it is full attention without"},
    CADENZA_OF_KIND(attention.sparse.block),
    CADENZA_OF_KIND(attention.sparse.columns),
    CADENZA_OF_KIND(attention.sparse.slashes),
    CADENZA_OF_KIND(attention.sparse.top_p),
    CADENZA_OF_KIND(attention.sparse.sinks),
    {CADENZA_KEY(attention.sparse.sinks), CADENZA_USED(forces_places(e)),
     CADENZA_CHOICE(attention.sparse.top_p), "top_p 0"},
    CADENZA_OF_KIND(attention.sparse.window),
    {CADENZA_KEY(attention.sparse.window), CADENZA_USED(forces_places(e)),
     CADENZA_CHOICE(attention.sparse.top_p), "top_p 0"},
    CADENZA_OF_KIND(attention.sparse.dense_below),
    CADENZA_OF_KIND(attention.sparse.dense_steps),
    CADENZA_OF_KIND(attention.sparse.refresh),
    CADENZA_OF_KIND(attention.sparse.stride),
    CADENZA_OF_KIND(attention.sparse.threshold),
    CADENZA_OF_KIND(attention.sparse.budgets),

    {CADENZA_KEY(attention.placement),
     CADENZA_USED(shares_sequences(e) || traits_of(e.attention.placement).reach != Reach::group),
     CADENZA_CHOICE(parallel.context),
     "parallel.context above 1, as a rank that has whole documents is colocated"},
    {CADENZA_KEY(attention.placement), CADENZA_USED(!splits_blocks(e)),
     CADENZA_CHOICE(attention.kind),
     "a rank has few queries of each block, but computes whole blocks; faster: block_striped",
     slow},
    {CADENZA_KEY(attention.sharding),
     CADENZA_USED(shares_sequences(e) && is_placed(e, leaves_sharding_open)), sharing_choice,
     placements(leaves_sharding_open) + " and parallel.context above 1"},
    {CADENZA_KEY(attention.shard_unit), CADENZA_USED(cuts_evenly(e)), cutting_choice,
     "parallel.context above 1 and sharding contiguous or zigzag"},
    {CADENZA_KEY(attention.head_parallel),
     CADENZA_USED(splits_some_heads(traits_of(e.attention.placement))),
     CADENZA_CHOICE(attention.placement), placements(splits_some_heads)},
    {CADENZA_KEY(attention.inner_ring),
     CADENZA_USED(passes_keys_on(traits_of(e.attention.placement))),
     CADENZA_CHOICE(attention.placement), placements(passes_keys_on)},
    {CADENZA_KEY(attention.block),
     CADENZA_USED(is_placed(e, has_blocks) || e.attention.shares() == Shares::ptrr),
     CADENZA_CHOICE(attention.placement), placements(has_blocks) + ", and sharding ptrr"},
    {CADENZA_KEY(attention.tolerance), CADENZA_USED(is_placed(e, moves_attention)),
     CADENZA_CHOICE(attention.placement), placements(moves_attention)},
    {CADENZA_KEY(attention.bound), CADENZA_USED(is_placed(e, moves_attention)),
     CADENZA_CHOICE(attention.placement), placements(moves_attention)},
    {CADENZA_KEY(attention.priority), CADENZA_USED(is_placed(e, moves_attention)),
     CADENZA_CHOICE(attention.placement), placements(moves_attention)},
    {CADENZA_KEY(attention.split_keys), CADENZA_USED(is_placed(e, moves_attention)),
     CADENZA_CHOICE(attention.placement), placements(moves_attention)},
    {CADENZA_KEY(attention.inputs),
     CADENZA_USED(is_placed(e, moves_attention) || shares_sequences(e) || e.attention.servers > 0),
     CADENZA_CHOICE(attention.placement),
     placements(moves_attention) + " or parallel.context above 1"},
    {CADENZA_KEY(attention.gather), CADENZA_USED(shares_sequences(e) && is_placed(e, gathers_keys)),
     sharing_choice, placements(gathers_keys) + " and parallel.context above 1"},

    {CADENZA_KEY(run.share_device), CADENZA_USED(e.run.device == DeviceKind::cuda),
     CADENZA_CHOICE(run.device), "device cuda"},
    {CADENZA_KEY(run.validate.steps), CADENZA_USED(e.run.validate.every > 0),
     CADENZA_CHOICE(run.validate.every), "run.validate.every above 0"},
    {CADENZA_KEY(run.checkpoint.keep), CADENZA_USED(e.run.checkpoint.every > 0),
     CADENZA_CHOICE(run.checkpoint.every), "run.checkpoint.every above 0"},
};

#undef CADENZA_KEY
#undef CADENZA_CHOICE
#undef CADENZA_USED
#undef CADENZA_OF_KIND
#undef CADENZA_OF_SCALING
#undef CADENZA_OF_TASK

/// The value written at `path`; null if there is none.
const Value* written(const Value& root, std::string_view path) {
  const Value* value = &root;
  while (value != nullptr && !path.empty()) {
    const std::size_t end = std::min(path.find('.'), path.size());
    value = value->find(std::string(path.substr(0, end)));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return value;
}

std::string found_at(const Value& root, const char* key) {
  const Value* const value = written(root, key);
  return value == nullptr ? "it" : found(*value);
}

/// By key: the first row by which it is not used; null if it is used.
std::map<std::string, const Belonging*> ignored_keys(const Experiment& experiment) {
  std::map<std::string, const Belonging*> ignored;
  for (const Belonging& row : kBelongings) {
    const Belonging*& first = ignored[row.key];
    if (first == nullptr && !row.is_used(experiment)) first = &row;
  }
  return ignored;
}

}  // namespace

void refuse_strangers(const Experiment& experiment, const Value& root) {
  for (const Belonging& row : kBelongings) {
    if (row.verdict != refused || row.is_used(experiment) || !row.is_set(experiment)) continue;
    fail_at(place_of(root, row.key), row.key,
            fmt::format("found {} with {}; valid: only with {}", found_at(root, row.key),
                        row.choice(experiment), row.with));
  }
}

void UnusedKeys::look_at(const Experiment& experiment, const Value& root,
                         const std::optional<Experiment>& file_alone) {
  const auto unused = ignored_keys(experiment);
  auto elsewhere = file_alone ? ignored_keys(*file_alone) : unused;
  const auto uses = [&](const std::string& key) {
    return elsewhere[key] == nullptr && place_of(root, key).in_file();
  };
  const std::lock_guard lock(mutex_);
  for (const auto& [key, row] : unused) {
    if (row == nullptr || (row->verdict != slow && uses(key))) {
      used_.insert(key);
    } else if (!used_.contains(key) && written(root, key) != nullptr && row->is_set(experiment)) {
      const char* const text = row->verdict == slow ? "found {} with {}: {}"
                                                    : "found {}, which {} ignores; used with {}";
      std::string line = located(place_of(root, key), key,
                                 fmt::format(fmt::runtime(text), found_at(root, row->key),
                                             row->choice(experiment), row->with));
      std::string& kept = lines_[key];
      if (kept.empty() || line < kept) kept = std::move(line);
    }
  }
}

std::vector<std::string> UnusedKeys::lines() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [key, line] : lines_) {
    if (!used_.contains(key)) lines.push_back(line);
  }
  return lines;
}

}  // namespace cadenza::config
