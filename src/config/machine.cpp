// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/machine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "config/data_sheet.hpp"
#include "config/machine_schema.hpp"
#include "config/value.hpp"

namespace cadenza::config {
namespace {

/// Place of row `row` of a table in the file.
const Place& place_of_row(const Value& root, const char* block, const char* table,
                          std::size_t row) {
  return root.find(block)->find(table)->items[row].place;
}

/// Checks a size of a measurement: tokens, rows, columns or depth.
void check_count(const Place& place, const std::string& path, double count) {
  if (count == std::floor(count) && count >= 1 && count <= static_cast<double>(kMaxSize)) return;
  fail_at(place, path,
          fmt::format("found a size of {}; valid: an integer in [1, {}]", count, kMaxSize));
}

void check_attention(const Value& root, const char* table, const std::vector<Row<3>>& rows) {
  std::set<std::pair<double, double>> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [queries, keys, seconds] = rows[i];
    const std::string path = fmt::format("attention.{}[{}]", table, i);
    const Place& place = place_of_row(root, "attention", table, i);
    check_count(place, path, queries);
    check_count(place, path, keys);
    if (queries > keys) {
      fail_at(place, path,
              fmt::format("found {} queries of a document of {} keys; valid: queries <= keys",
                          queries, keys));
    }
    if (!seen.emplace(queries, keys).second) {
      fail_at(place, path,
              fmt::format("found {} queries x {} keys a second time; valid: once", queries, keys));
    }
  }
}

void check_sparse(const Value& root, const char* table, const std::vector<Row<3>>& rows) {
  std::set<double> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [block, forward, backward] = rows[i];
    const std::string path = fmt::format("attention.sparse.{}[{}]", table, i);
    const Place& place = root.find("attention")->find("sparse")->find(table)->items[i].place;
    check_count(place, path, block);
    for (const double pair : {forward, backward}) {
      if (kPair.contains(pair)) continue;
      fail_at(place, path,
              fmt::format("found {} times a dense pair; valid: a number in [{}, {}]", pair,
                          kPair.low, kPair.high));
    }
    if (!seen.insert(block).second) {
      fail_at(place, path, fmt::format("found blocks of {} a second time; valid: once", block));
    }
  }
}

void check_products(const Value& root, const std::vector<Row<4>>& rows) {
  std::set<std::array<double, 3>> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [count, columns, depth, rate] = rows[i];
    const std::string path = fmt::format("products.table[{}]", i);
    const Place& place = place_of_row(root, "products", "table", i);
    for (const double size : {count, columns, depth}) check_count(place, path, size);
    if (seen.insert({count, columns, depth}).second) continue;
    fail_at(place, path,
            fmt::format("found {} x {} x {} a second time; valid: once", count, columns, depth));
  }
}

/// Requires the rates without which nominal ones would be used. These are for unnamed machines; for
/// a named one they would be wrong by orders of magnitude, unnoticed.
void require_rates(const Value& root, const Machine& machine) {
  std::vector<std::string> missing;
  const AttentionTimes& attention = machine.attention;
  const bool tables = !attention.forward.empty() && !attention.backward.empty();
  if (!tables && !gives(root, "attention.flops_per_second")) {
    missing.emplace_back("attention.flops_per_second (or attention.forward and backward)");
  }
  if (machine.products.table.empty() && !gives(root, "products.flops_per_second")) {
    missing.emplace_back("products.flops_per_second (or products.table)");
  }
  if (!gives(root, "links.inside.bytes_per_second")) {
    missing.emplace_back("links.inside.bytes_per_second");
  }
  if (machine.ranks_per_node > 0 && !gives(root, "links.between.bytes_per_second")) {
    missing.emplace_back("links.between.bytes_per_second");
  }
  if (missing.empty()) return;
  fail_at(root.place, "",
          fmt::format("found no {}, and no other key says it; valid: what was measured (cadenza "
                      "calibrate), or the block `sheet` with the numbers of its data sheet, as in "
                      "inputs/machines/a100.yaml",
                      fmt::join(missing, ", no ")));
}

void check_numbers(const Value& root, const Machine& machine) {
  const AttentionTimes& attention = machine.attention;
  if (attention.heads % attention.kv_heads != 0) {
    fail_at(place_of(root, "attention.kv_heads"), "attention.kv_heads",
            fmt::format("found {}, which does not divide attention.heads = {}; valid: a divisor",
                        attention.kv_heads, attention.heads));
  }
  check_attention(root, "forward", attention.forward);
  check_attention(root, "backward", attention.backward);
  check_sparse(root, "table", attention.sparse.table);
  check_sparse(root, "adjoining", attention.sparse.adjoining);
  check_products(root, machine.products.table);
  if (machine.links.adapters > 0 && machine.ranks_per_node > 0 &&
      machine.ranks_per_node % machine.links.adapters != 0) {
    fail_at(place_of(root, "links.adapters"), "links.adapters",
            fmt::format("found {}, which does not divide ranks_per_node = {}; valid: a divisor, or "
                        "0 for one per rank",
                        machine.links.adapters, machine.ranks_per_node));
  }
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& file) {
  const Value root = parse_yaml(text, file);
  check_keys<Machine>(root);
  Machine machine = read_machine(root);
  check_numbers(root, machine);
  has_sheet(machine) ? complete_from_sheet(root, machine) : require_rates(root, machine);
  return machine;
}

}  // namespace cadenza::config
