// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/progress.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cadenza/base/text.hpp"
#include "cadenza/base/units.hpp"
#include "app/runtime/terminal.hpp"

namespace cadenza::app {
namespace {

/// `text` within so many characters, and where it is cut, with dots.
std::string within(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, std::max<std::size_t>(most, 3) - 3) + "...";
}

}  // namespace

Progress::Progress(bool enabled, std::int64_t steps, std::string what, std::int64_t first,
                   std::FILE* stream)
    : enabled_(enabled && spdlog::should_log(spdlog::level::info)),
      stream_(stream),
      columns_(terminal_columns(stream)),
      steps_(steps),
      first_(first),
      what_(std::move(what)) {}

void Progress::show(std::int64_t done, const std::string& text) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  const bool due = now - shown_ >= std::chrono::seconds(1) || done == first_ + 1 || done == steps_;
  if (columns_ == 0 && !due) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      elapsed / static_cast<double>(done - first_) * static_cast<double>(steps_ - done);
  const std::int64_t number = what_ == kStep ? done - 1 : done;
  const std::string head =
      fmt::format("{} {:>{}}/{}  ", what_, number, fmt::formatted_size("{}", steps_), steps_);
  const std::string tail = fmt::format("  left {}", format_duration(left));
  if (columns_ > 0) {  // a line that goes on in the next one could not be rewritten
    const std::size_t taken = head.size() + tail.size() + 1;
    fmt::print(stream_, "\r\x1b[K{}{}{}", head, within(text, columns_ - std::min(columns_, taken)),
               tail);
    line_open_ = true;
  } else {
    fmt::print(stream_, "{}{}{}\n", head, text, tail);
  }
  std::fflush(stream_);
}

void Progress::finish() {
  if (line_open_) fmt::print(stream_, "\n");
  line_open_ = false;
  std::fflush(stream_);
}

std::string describe(const StepMetrics& m) {
  std::string text = format_count(m.tokens_per_second) + " tokens/s";
  if (std::isfinite(m.model_flops_utilization)) {
    text += fmt::format("  MFU {:.1f} %", 100.0 * m.model_flops_utilization);
  }
  text += fmt::format("  attention imbalance {:.3f} (by layer {:.3f})", m.attention_imbalance,
                      m.attention_imbalance_by_layer);
  if (m.sparsity > 0) {
    text += fmt::format("  sparse {:.1f} % ({} of {} FLOPs)", 100 * *m.sparsity,
                        format_count(m.attention_flops), format_count(m.dense_attention_flops));
  }
  if (m.recall)
    text += fmt::format("  recall {:.1f} % in layer {}", 100 * *m.recall, m.recall_layer);
  if (m.answers > 0) text += fmt::format("  answers {}/{}", m.hits, m.answers);
  return text;
}

std::string summary_table(const std::vector<RankSummary>& ranks) {
  constexpr const char* kRow = "  {:<14} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}";
  std::vector<std::string> rows;
  std::vector<double> busy;
  for (const RankSummary& r : ranks) {
    const auto share = [&](double seconds) {
      return fmt::format("{:.1f} %", r.total > 0 ? 100.0 * seconds / r.total : 0.0);
    };
    rows.push_back(fmt::format(kRow, r.role, format_duration(r.attention), share(r.busy),
                               share(r.waiting), share(r.communicating),
                               share(r.total - r.busy - r.waiting - r.communicating),
                               format_bytes(static_cast<double>(r.bytes_sent)),
                               format_bytes(static_cast<double>(r.peak_memory))));
    busy.push_back(r.busy);
  }
  const std::string header =
      fmt::format(kRow, "role", "attention", "busy", "waiting", "comm.", "other", "sent", "memory");
  return rank_table(header, rows, busy, "busy time");
}

}  // namespace cadenza::app
