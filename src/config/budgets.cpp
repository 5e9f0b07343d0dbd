// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/load.hpp"
#include "config/value.hpp"

namespace cadenza::config {
namespace {

/// Requires a list of at most `most` items; `valid` describes it in messages.
void require_list(const Value& value, const std::string& path, std::int64_t most,
                  const char* valid) {
  if (value.kind != Value::Kind::list) {
    fail_at(value.place, path, fmt::format("found {}; valid: {}", found(value), valid));
  }
  if (std::ssize(value.items) > most) {
    fail_at(value.place, path,
            fmt::format("found {} items; valid: {}, at most {}", value.items.size(), valid, most));
  }
}

HeadBudget budget_of(const Value& head, const std::string& path, const HeadBudget& usual) {
  if (head.kind == Value::Kind::nothing) return usual;
  if (head.kind != Value::Kind::block) {
    fail_at(head.place, path,
            fmt::format("found {}; valid: a block of columns, slashes and top_p", found(head)));
  }
  check_keys<HeadBudget>(head);
  const HeadBudget budget = read_budget(head, path, usual);
  if (budget.columns + budget.slashes == 0) {
    fail_at(head.place, path,
            "found 0 columns and 0 slashes, which leaves nothing but the blocks of the diagonal; "
            "valid: 1 or more of either");
  }
  return budget;
}

}  // namespace

void read_budgets(const std::string& text, Experiment& experiment) {
  SparseAttention& sparse = experiment.attention.sparse;
  const Value root = parse_yaml_list(text, sparse.budgets);
  const HeadBudget usual{sparse.columns, sparse.slashes, sparse.top_p};
  require_list(root, "", experiment.model.layers, "a list of the model's layers");
  sparse.heads.clear();
  for (const Value& layer : root.items) {
    const std::string path = fmt::format("[{}]", sparse.heads.size());
    std::vector<HeadBudget>& heads = sparse.heads.emplace_back();
    if (layer.kind == Value::Kind::nothing) continue;
    require_list(layer, path, experiment.model.heads, "a list of the layer's query heads");
    for (const Value& head : layer.items) {
      heads.push_back(budget_of(head, fmt::format("{}[{}]", path, heads.size()), usual));
    }
  }
}

}  // namespace cadenza::config
