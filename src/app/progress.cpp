// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "cadenza/base/units.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {
namespace {

/// mpirun gives its ranks a pseudo-terminal whatever its own output is: then the launcher's counts.
bool writes_to_terminal(int output) {
  if (isatty(output) == 0) return false;
  if (!comm::has_launcher()) return true;
  std::error_code error;
  const auto target =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", getppid(), output), error);
  return !error && target.string().starts_with("/dev/pts/");
}

}  // namespace

Progress::Progress(bool enabled, std::int64_t steps, std::string what, std::int64_t first,
                   std::FILE* stream)
    : enabled_(enabled),
      stream_(stream),
      terminal_(writes_to_terminal(fileno(stream))),
      steps_(steps),
      first_(first),
      what_(std::move(what)) {}

void Progress::show(std::int64_t done, const std::string& text) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  const bool due = now - shown_ >= std::chrono::seconds(1) || done == first_ + 1 || done == steps_;
  if (!terminal_ && !due) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      elapsed / static_cast<double>(done - first_) * static_cast<double>(steps_ - done);
  const std::string line =
      fmt::format("{} {:>{}}/{}  {}  left {}", what_, done, fmt::formatted_size("{}", steps_),
                  steps_, text, format_duration(left));
  if (terminal_) {
    fmt::print(stream_, "\r\x1b[K{}", line);
    line_open_ = true;
  } else {
    fmt::print(stream_, "{}\n", line);
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
  return text + fmt::format("  attention imbalance {:.3f}", m.attention_imbalance);
}

std::string summary_table(const std::vector<RankSummary>& ranks) {
  std::string text =
      fmt::format("{:>5}  {:<16} {:>11} {:>8} {:>9} {:>14} {:>8} {:>11} {:>12}\n", "rank", "role",
                  "attention", "busy", "waiting", "communicating", "other", "sent", "peak memory");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankSummary& r = ranks[rank];
    const auto share = [&](double seconds) {
      return fmt::format("{:.1f} %", r.total > 0 ? 100.0 * seconds / r.total : 0.0);
    };
    text +=
        fmt::format("{:>5}  {:<16} {:>11} {:>8} {:>9} {:>14} {:>8} {:>11} {:>12}\n", rank, r.role,
                    format_duration(r.attention), share(r.busy), share(r.waiting),
                    share(r.communicating), share(r.total - r.busy - r.waiting - r.communicating),
                    format_bytes(static_cast<double>(r.bytes_sent)),
                    format_bytes(static_cast<double>(r.peak_memory)));
  }
  return text;
}

}  // namespace cadenza::app
