// SPDX-License-Identifier: Apache-2.0
#include "plan/workload/sharding.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"

namespace cadenza::plan {
namespace {

/// The runs of a document: run i is tokens [i * run, (i + 1) * run) of the text and belongs to
/// stripe i mod stripes; the last run may be shorter.
struct Runs {
  Runs(const TokenOrder& order, std::int64_t length)
      : stripes(order.stripes),
        run(order.run),
        count((length + order.run - 1) / order.run),
        missing(count * order.run - length) {}

  /// Stripe of the last, perhaps shorter run.
  std::int64_t last() const { return (count - 1) % stripes; }
  /// Number of runs in all stripes before `stripe`.
  std::int64_t before(std::int64_t stripe) const {
    return stripe * (count / stripes) + std::min(stripe, count % stripes);
  }
  std::int64_t begin(std::int64_t stripe) const {
    return before(stripe) * run - (count > 0 && last() < stripe ? missing : 0);
  }

  std::int64_t stripes, run, count, missing;
};

/// Number of tokens of a stripe before text position `end`.
std::int64_t stripe_prefix(const TokenOrder& order, std::int64_t length, std::int64_t stripe,
                           std::int64_t end) {
  end = std::clamp<std::int64_t>(end, 0, length);
  const std::int64_t whole = end / order.run;
  const std::int64_t runs = (whole - stripe + order.stripes - 1) / order.stripes;
  const std::int64_t rest = whole % order.stripes == stripe ? end % order.run : 0;
  return runs * order.run + rest;
}

/// Calls visit(stripe, part) for every part of `tokens`, cut where the stripe changes.
template <typename Visit>
void for_each_stripe(const TokenOrder& order, std::int64_t length, Range tokens, Visit&& visit) {
  if (order.natural()) return visit(std::int64_t{0}, tokens);
  std::int64_t stripe = stripe_of(order, length, tokens.begin);
  for (; stripe < order.stripes; ++stripe) {
    const Range whole = stripe_tokens(order, length, stripe);
    if (whole.begin >= tokens.end) return;
    const Range part = intersect(whole, tokens);
    if (!part.empty()) visit(stripe, part);
  }
}

std::int64_t divide_down(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/// A document in a workload's order of tokens.
struct Counted {
  Counted(const Workload& workload, int document)
      : order(workload.order),
        length(workload.lengths[at(document)]),
        mask(workload.mask_of(document)) {}

  Range whole() const { return {0, length}; }
  Range tokens(std::int64_t stripe) const { return stripe_tokens(order, length, stripe); }
  std::int64_t prefix(std::int64_t stripe, std::int64_t end) const {
    return stripe_prefix(order, length, stripe, end);
  }
  /// Counts of the tokens of a stripe that lie in `text`.
  Range inside(std::int64_t stripe, Range text) const {
    const std::int64_t begin = tokens(stripe).begin;
    return {begin + prefix(stripe, text.begin), begin + prefix(stripe, text.end)};
  }

  TokenOrder order;
  std::int64_t length;
  Mask mask;
};

/// The band, in counts, of queries of stripe `a` and keys of stripe `b` for a band of the text. All
/// runs must be one token.
Band band_of_counts(const Counted& document, Band band, std::int64_t a, std::int64_t b) {
  const std::int64_t stripes = document.order.stripes;
  Band counts = Band::full();
  if (band.has_low()) counts.low = -divide_down(b - a - band.low, stripes);
  if (band.has_high()) counts.high = divide_down(a - b + band.high, stripes);
  return counts.shifted(document.tokens(b).begin - document.tokens(a).begin);
}

/// The task of the first queries of `task` for which each edge of the band stays in one run of the
/// text. An edge in a run of stripe `b` is a diagonal; any other is the same for all these queries.
Task first_step(const Counted& document, Task task, Band band, std::int64_t b) {
  const std::int64_t run = document.order.run;
  const std::int64_t begin = document.tokens(b).begin;
  const std::int64_t position = position_of(document.order, document.length, task.q.begin);
  const auto left = [&](std::int64_t x) { return run - (x - divide_down(x, run) * run); };
  const auto in_stripe = [&](std::int64_t x) {
    return x >= 0 && x / run % document.order.stripes == b;
  };
  std::int64_t count = left(position);
  task.band = Band::full();
  if (band.has_low()) {
    const std::int64_t first = position + band.low;
    const std::int64_t key = begin + document.prefix(b, first);
    count = std::min(count, left(first));
    task.k.begin = std::max(task.k.begin, key);
    if (in_stripe(first)) task.band.low = key - task.q.begin;
  }
  if (band.has_high()) {
    const std::int64_t last = position + band.high;
    count = std::min(count, left(last));
    if (in_stripe(last)) {
      task.band.high = begin + document.prefix(b, last) - task.q.begin;
    } else {
      task.k.end = std::min(task.k.end, begin + document.prefix(b, last));
    }
  }
  task.q.end = std::min(task.q.end, task.q.begin + count);
  return task;
}

/// Calls visit(Task) for parts with one band each of queries of stripe `a` and keys of stripe `b`.
template <typename Visit>
void for_each_part(const Counted& document, Task task, Band band, std::int64_t a, std::int64_t b,
                   Visit&& visit) {
  // Within a stripe, counts are in the order of the text.
  const bool same_order = a == b && !band.has_low() && (band.high == 0 || !band.has_high());
  if (document.order.run == 1 || same_order) {
    task.band = same_order ? band : band_of_counts(document, band, a, b);
    // A narrow band may lie between two keys of a stripe.
    if (task.band.low <= task.band.high) visit(task);
    return;
  }
  const std::int64_t end = task.q.end;
  while (task.q.begin < end) {
    const Task step = first_step(document, task, band, b);
    visit(step);
    task.q.begin = step.q.end;
  }
}

/// Sum of the text positions of the first `count` tokens of a stripe.
std::int64_t sum_of_positions(const TokenOrder& order, std::int64_t stripe, std::int64_t count) {
  const std::int64_t run = order.run;
  const std::int64_t whole = count / run;
  const std::int64_t rest = count % run;
  return run * run * order.stripes * (whole * (whole - 1) / 2) +
         whole * (stripe * run * run + run * (run - 1) / 2) +
         rest * ((whole * order.stripes + stripe) * run) + rest * (rest - 1) / 2;
}

/// Sum of max(0, position + shift) over the first `count` tokens of a stripe.
std::int64_t sum_above(const Counted& document, std::int64_t stripe, std::int64_t count,
                       std::int64_t shift) {
  const std::int64_t first = std::min(count, document.prefix(stripe, -shift));
  return sum_of_positions(document.order, stripe, count) -
         sum_of_positions(document.order, stripe, first) + shift * (count - first);
}

/// Allowed pairs of the first `count` tokens of a stripe with the keys of a region.
std::int64_t pairs_of_first(const Counted& document, std::int64_t stripe, std::int64_t count,
                            const Region& region) {
  // Sum over the tokens of the number of the region's keys before position + shift.
  const auto before = [&](std::int64_t shift) {
    return sum_above(document, stripe, count, shift - region.k.begin) -
           sum_above(document, stripe, count, shift - region.k.end);
  };
  const std::int64_t up_to_high =
      region.band.has_high() ? before(region.band.high + 1) : count * region.k.size();
  return region.band.has_low() ? up_to_high - before(region.band.low) : up_to_high;
}

}  // namespace

std::int64_t position_of(const TokenOrder& order, std::int64_t length, std::int64_t token) {
  if (order.natural()) return token;
  const Runs runs(order, length);
  const std::int64_t stripe = stripe_of(order, length, token);
  const std::int64_t inside = token - runs.begin(stripe);
  return (inside / order.run * order.stripes + stripe) * order.run + inside % order.run;
}

std::vector<TextRun> text_runs(const TokenOrder& order, std::int64_t length, Range tokens) {
  std::vector<TextRun> runs;
  for_each_stripe(order, length, tokens, [&](std::int64_t, Range part) {
    if (order.natural()) return runs.push_back({part, part.begin, 1});
    if (order.run == 1) {
      return runs.push_back({part, position_of(order, length, part.begin), order.stripes});
    }
    while (!part.empty()) {
      const std::int64_t first = position_of(order, length, part.begin);
      const std::int64_t whole = part.begin + order.run - first % order.run;
      runs.push_back({{part.begin, std::min(whole, part.end)}, first, 1});
      part.begin = runs.back().tokens.end;
    }
  });
  return runs;
}

Range stripe_tokens(const TokenOrder& order, std::int64_t length, std::int64_t stripe) {
  const Runs runs(order, length);
  return {runs.begin(stripe), runs.begin(stripe + 1)};
}

std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token) {
  if (order.natural()) return 0;
  const Runs runs(order, length);
  // Count as if the last run were whole.
  if (token >= runs.begin(runs.last() + 1)) token += runs.missing;
  const std::int64_t run = token / order.run;
  const std::int64_t each = runs.count / runs.stripes;
  const std::int64_t longer = runs.count % runs.stripes;  // number of stripes with one run more
  if (run < longer * (each + 1)) return run / (each + 1);
  return longer + (run - longer * (each + 1)) / each;
}

std::vector<Task> masked_tasks(const Workload& workload, const Task& rectangle) {
  const Counted document(workload, rectangle.document);
  std::vector<Task> tasks;
  const auto keep = [&](Task task) {
    task = trimmed(task);
    if (!task.q.empty() && !task.k.empty()) tasks.push_back(task);
  };
  if (document.order.natural()) {
    document.mask.for_each_task(rectangle, keep);
    return tasks;
  }
  const auto add_part = [&](std::int64_t a, Range q, std::int64_t b, Range k) {
    document.mask.for_each_region(document.whole(), document.whole(), [&](const Region& region) {
      Task part = rectangle;
      part.q = intersect(q, document.inside(a, region.q));
      part.k = intersect(k, document.inside(b, region.k));
      part.q_positions = region.q_positions;
      if (!part.q.empty() && !part.k.empty()) {
        for_each_part(document, part, region.band, a, b, keep);
      }
    });
  };
  for_each_stripe(document.order, document.length, rectangle.q, [&](std::int64_t a, Range q) {
    for_each_stripe(document.order, document.length, rectangle.k,
                    [&](std::int64_t b, Range k) { add_part(a, q, b, k); });
  });
  return tasks;
}

std::int64_t mask_pairs(const Workload& workload, int document, Range q) {
  const Counted counted(workload, document);
  if (counted.order.natural()) return counted.mask.pairs(q);
  std::int64_t pairs = 0;
  if (q.empty()) return pairs;
  for_each_stripe(counted.order, counted.length, q, [&](std::int64_t stripe, Range part) {
    const std::int64_t begin = counted.tokens(stripe).begin;
    counted.mask.for_each_region(counted.whole(), counted.whole(), [&](const Region& region) {
      const Range own = intersect(part, counted.inside(stripe, region.q));
      if (own.empty()) return;
      pairs += pairs_of_first(counted, stripe, own.end - begin, region) -
               pairs_of_first(counted, stripe, own.begin - begin, region);
    });
  });
  return pairs;
}

bool is_masked(const Workload& workload, const Task& task) {
  std::int64_t mask = 0;
  std::int64_t both = 0;
  for (const Task& part : masked_tasks(workload, task)) {
    mask += allowed_pairs(part);
    if (part.q_positions != task.q_positions) continue;
    both += allowed_pairs(part.q, part.k, common(part.band, task.band));
  }
  return both == mask && allowed_pairs(task) == mask;
}

}  // namespace cadenza::plan
