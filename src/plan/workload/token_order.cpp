// SPDX-License-Identifier: Apache-2.0
#include "token_order.hpp"

#include <algorithm>

namespace cadenza::plan {
namespace {

/// A document's runs: run i is tokens [i * run, (i + 1) * run) of the text and belongs to stripe
/// i mod stripes; the last one may be shorter.
struct Runs {
  Runs(const TokenOrder& order, std::int64_t length)
      : stripes(order.stripes),
        run(order.run),
        count((length + order.run - 1) / order.run),
        missing(count * order.run - length) {}

  /// Stripe of the last, perhaps shorter run.
  std::int64_t last() const { return (count - 1) % stripes; }
  /// Runs in all stripes before one.
  std::int64_t before(std::int64_t stripe) const {
    return stripe * (count / stripes) + std::min(stripe, count % stripes);
  }
  std::int64_t begin(std::int64_t stripe) const {
    return before(stripe) * run - (count > 0 && last() < stripe ? missing : 0);
  }

  std::int64_t stripes, run, count, missing;
};

/// How many tokens of a stripe stand before text position `end`.
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

/// The part of a rectangle that sees something.
Task trimmed(Task task) {
  if (task.rule == Rule::full) return task;
  task.q.begin = std::max(task.q.begin, task.k.begin - task.diagonal);
  task.k.end = std::min(task.k.end, task.q.end + task.diagonal);
  return task;
}

/// Calls visit(Task) for the parts of queries of stripe `a` and keys of stripe `b`.
template <typename Visit>
void for_each_part(const TokenOrder& order, std::int64_t length, Task task, std::int64_t a,
                   std::int64_t b, Visit&& visit) {
  task.rule = Rule::causal;
  task.diagonal = 0;
  if (a == b) return visit(task);
  const std::int64_t queries = stripe_tokens(order, length, a).begin;
  const std::int64_t keys = stripe_tokens(order, length, b).begin;
  if (order.run == 1) {
    task.diagonal = keys - queries - (b > a ? 1 : 0);
    return visit(task);
  }
  // A run of queries sees all keys before it, and none of its own stretch of the text.
  const Range q = task.q;
  const Range k = task.k;
  task.rule = Rule::full;
  while (task.q.begin < q.end) {
    const std::int64_t step = (task.q.begin - queries) / order.run;
    const std::int64_t position = (step * order.stripes + a) * order.run;
    task.q.end = std::min(q.end, queries + (step + 1) * order.run);
    task.k.end = std::min(k.end, keys + stripe_prefix(order, length, b, position));
    visit(task);
    task.q.begin = task.q.end;
  }
}

}  // namespace

std::int64_t position_of(const TokenOrder& order, std::int64_t length, std::int64_t token) {
  if (order.natural()) return token;
  const Runs runs(order, length);
  const std::int64_t stripe = stripe_of(order, length, token);
  const std::int64_t inside = token - runs.begin(stripe);
  return (inside / order.run * order.stripes + stripe) * order.run + inside % order.run;
}

Range stripe_tokens(const TokenOrder& order, std::int64_t length, std::int64_t stripe) {
  const Runs runs(order, length);
  return {runs.begin(stripe), runs.begin(stripe + 1)};
}

std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token) {
  if (order.natural()) return 0;
  const Runs runs(order, length);
  // As if the last run were whole.
  if (token >= runs.begin(runs.last() + 1)) token += runs.missing;
  const std::int64_t run = token / order.run;
  const std::int64_t each = runs.count / runs.stripes;
  const std::int64_t longer = runs.count % runs.stripes;  // stripes with one run more
  if (run < longer * (each + 1)) return run / (each + 1);
  return longer + (run - longer * (each + 1)) / each;
}

std::vector<Range> seen_keys(const TokenOrder& order, std::int64_t length, Range q, Range tokens) {
  std::int64_t end = 0;  // of the text that the queries see
  if (q.empty()) return {};
  for_each_stripe(order, length, q, [&](std::int64_t, Range part) {
    end = std::max(end, position_of(order, length, part.end - 1) + 1);
  });
  std::vector<Range> seen;
  for_each_stripe(order, length, tokens, [&](std::int64_t stripe, Range part) {
    const std::int64_t begin = stripe_tokens(order, length, stripe).begin;
    part.end = std::min(part.end, begin + stripe_prefix(order, length, stripe, end));
    if (!part.empty()) seen.push_back(part);
  });
  return seen;
}

std::vector<Task> masked_tasks(const TokenOrder& order, std::int64_t length,
                               const Task& rectangle) {
  std::vector<Task> tasks;
  for_each_stripe(order, length, rectangle.q, [&](std::int64_t a, Range q) {
    for_each_stripe(order, length, rectangle.k, [&](std::int64_t b, Range k) {
      Task part = rectangle;
      part.q = q;
      part.k = k;
      for_each_part(order, length, part, a, b, [&](Task task) {
        task = trimmed(task);
        if (!task.q.empty() && !task.k.empty()) tasks.push_back(task);
      });
    });
  });
  return tasks;
}

std::int64_t mask_pairs(const TokenOrder& order, std::int64_t length, Range q) {
  // Sum of position + 1 over the first `count` tokens of a stripe.
  const auto sum = [&](std::int64_t stripe, std::int64_t count) {
    const std::int64_t run = order.run;
    const std::int64_t whole = count / run;
    const std::int64_t rest = count % run;
    const std::int64_t starts = run * run * order.stripes * (whole * (whole - 1) / 2) +
                                whole * (stripe * run * run + run * (run + 1) / 2);
    return starts + rest * ((whole * order.stripes + stripe) * run) + rest * (rest + 1) / 2;
  };
  std::int64_t pairs = 0;
  if (q.empty()) return pairs;
  for_each_stripe(order, length, q, [&](std::int64_t stripe, Range part) {
    const std::int64_t begin = stripe_tokens(order, length, stripe).begin;
    pairs += sum(stripe, part.end - begin) - sum(stripe, part.begin - begin);
  });
  return pairs;
}

bool is_masked(const TokenOrder& order, std::int64_t length, const Task& task) {
  bool equal = true;
  const auto pairs = [](const Task& t) { return allowed_pairs(t.q, t.k, t.rule, t.diagonal); };
  for_each_stripe(order, length, task.q, [&](std::int64_t a, Range q) {
    for_each_stripe(order, length, task.k, [&](std::int64_t b, Range k) {
      Task part = task;
      part.q = q;
      part.k = k;
      for_each_part(order, length, part, a, b, [&](Task mask) {
        Task own = part;
        own.q = mask.q;
        if (mask.rule == Rule::causal) {
          // Both hide what follows a diagonal, or nothing: one mask holds the other.
          equal = equal && pairs(own) == pairs(mask);
          return;
        }
        // The mask's queries see the same prefix of the keys; later queries of `own` see no less.
        for (std::int64_t i : {own.q.begin, own.q.end - 1}) {
          equal = equal && visible_keys(i, own.k, own.rule, own.diagonal) ==
                               std::max<std::int64_t>(0, mask.k.size());
        }
      });
    });
  });
  return equal;
}

}  // namespace cadenza::plan
