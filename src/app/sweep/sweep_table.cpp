// SPDX-License-Identifier: Apache-2.0
#include "app/sweep/sweep_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {

std::string to_csv(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char c : cell) {
      if (c == '"') line += '"';
      line += c == '\n' || c == '\r' ? ' ' : c;
    }
    line += '"';
  }
  return line;
}

std::optional<std::vector<std::string>> from_csv(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  if (quoted) return std::nullopt;
  return cells;
}

namespace {

constexpr std::array<std::string_view, 4> kStatus = {"ok", "out_of_memory", "refused", "failed"};

struct Result {
  const char* name;
  std::string (*cell)(const PointResult&);
  bool is_text = false;
};

template <double SimulationSummary::*Field>
std::string number(const PointResult& r) {
  return fmt::format("{}", r.summary.*Field);
}

template <double TimeShares::*Field>
std::string share(const PointResult& r) {
  return fmt::format("{}", r.summary.shares.*Field);
}

template <std::int64_t MemoryVerdict::*Field>
std::string bytes(const PointResult& r) {
  return fmt::format("{}", r.summary.memory.*Field);
}

/// Returns a memory estimate of the rank that needs most.
template <std::int64_t exec::MemoryEstimate::*Field>
std::string part(const PointResult& r) {
  return fmt::format("{}", r.summary.memory.parts.*Field);
}

/// Columns of every point, whatever its outcome.
constexpr Result kAlways[] = {
    {"status", [](const PointResult& r) { return std::string(kStatus[at(r.status)]); }, true},
    {"reason", [](const PointResult& r) { return r.reason; }, true},
    {"experiment",
     [](const PointResult& r) {
       return r.experiment == 0 ? std::string() : fmt::format("{:016x}", r.experiment);
     },
     true},
};

/// Columns of simulated points.
constexpr Result kNumbers[] = {
    {"ranks", [](const PointResult& r) { return fmt::format("{}", r.summary.ranks); }},
    {"steps", [](const PointResult& r) { return fmt::format("{}", r.summary.steps.size()); }},
    {"seconds", number<&SimulationSummary::seconds>},
    {"lower_bound_seconds", number<&SimulationSummary::lower_bound_seconds>},
    {"tokens", number<&SimulationSummary::tokens>},
    {"tokens_per_second",
     [](const PointResult& r) { return fmt::format("{}", r.summary.tokens_per_second()); }},
    {"model_flops_utilization", number<&SimulationSummary::model_flops_utilization>},
    {"attention_imbalance", number<&SimulationSummary::attention_imbalance>},
    {"attention_share", share<&TimeShares::attention>},
    {"dense_share", share<&TimeShares::dense>},
    {"copies_share", share<&TimeShares::copies>},
    {"optimizer_share", share<&TimeShares::optimizer>},
    {"waiting_share", share<&TimeShares::waiting>},
    {"collectives_share", share<&TimeShares::collectives>},
    {"idle_share", share<&TimeShares::idle>},
    {"bytes_sent", number<&SimulationSummary::bytes_sent>},
    {"largest_memory_bytes", bytes<&MemoryVerdict::largest>},
    {"smallest_memory_bytes", bytes<&MemoryVerdict::smallest>},
    {"memory_limit_bytes", bytes<&MemoryVerdict::limit>},
    {"parameters_bytes", part<&exec::MemoryEstimate::parameters>},
    {"activations_bytes", part<&exec::MemoryEstimate::activations>},
    {"attention_bytes", part<&exec::MemoryEstimate::attention>},
    {"messages_bytes", part<&exec::MemoryEstimate::communication>},
    {"notes",
     [](const PointResult& r) { return fmt::format("{}", fmt::join(r.summary.notes, "; ")); },
     true},
};

[[noreturn]] void fail_to_write(const std::string& path) {
  fail(ExitCode::data, "{}: cannot be written: {}", path, std::generic_category().message(errno));
}

/// Returns the complete lines: a killed process may have left a partial one.
std::vector<std::string> table_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  std::vector<std::string> lines;
  const std::string all = text.str();
  std::size_t begin = 0;
  for (std::size_t end = all.find('\n'); end != std::string::npos; end = all.find('\n', begin)) {
    lines.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::vector<std::string> columns_of(const config::Sweep& sweep) {
  std::vector<std::string> results;
  for (const Result& result : kAlways) results.emplace_back(result.name);
  for (const Result& result : kNumbers) results.emplace_back(result.name);
  std::vector<std::string> columns;
  for (const config::Axis& axis : sweep.axes) {
    if (std::ranges::count(results, axis.name) > 0) {
      fail(ExitCode::usage, "axes.{}: found the name of a result's column; valid: another name",
           axis.name);
    }
    columns.push_back(axis.name);
  }
  columns.insert(columns.end(), results.begin(), results.end());
  return columns;
}

SweepRow row_of(const std::vector<std::string>& labels, const PointResult& result) {
  SweepRow row = labels;
  for (const Result& column : kAlways) row.push_back(column.cell(result));
  const bool simulated =
      result.status == PointStatus::ok || result.status == PointStatus::out_of_memory;
  for (const Result& column : kNumbers) row.push_back(simulated ? column.cell(result) : "");
  return row;
}

PointStatus status_of(const config::Sweep& sweep, const SweepRow& row) {
  const auto word = std::ranges::find(kStatus, std::string_view(row.at(sweep.axes.size())));
  return word == kStatus.end() ? PointStatus::failed
                               : static_cast<PointStatus>(word - kStatus.begin());
}

SweepLog::SweepLog(std::string path, std::vector<std::string> columns)
    : path_(std::move(path)), columns_(std::move(columns)) {
  const std::vector<std::string> lines = table_lines(path_);
  if (!lines.empty() && lines.front() != to_csv(columns_)) {
    fail(ExitCode::data,
         "{}: found the table of another sweep; valid: --output with an empty folder", path_);
  }
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto cells = from_csv(lines[i]);
    if (cells && cells->size() == columns_.size()) kept_.push_back(*cells);
  }
  replace(kept_);
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_) fail_to_write(path_);
}

const SweepRow* SweepLog::find(const std::vector<std::string>& labels,
                               std::uint64_t experiment) const {
  const std::string hash = fmt::format("{:016x}", experiment);
  const std::size_t hash_column = labels.size() + 2;
  const auto row = std::ranges::find_if(kept_, [&](const SweepRow& candidate) {
    return candidate[hash_column] == hash &&
           std::equal(labels.begin(), labels.end(), candidate.begin());
  });
  return row == kept_.end() ? nullptr : &*row;
}

void SweepLog::add(const SweepRow& row) {
  file_ << to_csv(row) + '\n' << std::flush;
  if (!file_) fail_to_write(path_);
}

void SweepLog::finish(std::span<const SweepRow> rows) {
  file_.close();
  replace(rows);
}

void SweepLog::replace(std::span<const SweepRow> rows) {
  std::string text = to_csv(columns_) + '\n';
  for (const SweepRow& row : rows) text += to_csv(row) + '\n';
  storage::write_whole(path_, text);
}

void write_hdf5(const std::string& path, const config::Sweep& sweep,
                std::span<const SweepRow> rows) {
  storage::NewFile output(path);
  storage::File& file = output.file();
  file.write_attribute("name", sweep.name);
  file.write_attribute("title", sweep.title);
  const std::vector<std::string> columns = columns_of(sweep);
  for (std::size_t column = 0; column < columns.size(); ++column) {
    const auto result = std::ranges::find(kNumbers, columns[column], &Result::name);
    if (result == std::ranges::end(kNumbers) || result->is_text) {
      std::vector<std::string> texts;
      for (const SweepRow& row : rows) texts.push_back(row[column]);
      file.write_texts(columns[column], texts);
      continue;
    }
    std::vector<double> numbers;
    for (const SweepRow& row : rows) {
      double value = std::numeric_limits<double>::quiet_NaN();
      std::from_chars(row[column].data(), row[column].data() + row[column].size(), value);
      numbers.push_back(value);
    }
    file.write(columns[column], {numbers.size()}, numbers.data());
  }
  output.finish();
}

}  // namespace cadenza::app
