// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <istream>
#include <map>
#include <ostream>
#include <string>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::bench {
namespace {

/// Quantile of sorted samples, linear between them.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - std::floor(place));
}

using Works = std::map<std::string, std::unique_ptr<Work>>;

Work& find(const Works& works, const std::string& name) {
  const auto found = works.find(name);
  if (found == works.end()) fail(ExitCode::usage, "'{}' was not prepared", name);
  return *found->second;
}

Json answer(const Json& request, Works& works, const MakeWork& make_work) {
  if (request.contains("prepare")) {
    const std::string name = request.at("prepare");
    works.erase(name);  // its memory first
    const auto made = works.emplace(name, make_work(request.at("work")));
    return {{"flops", made.first->second->flops()}};
  }
  if (request.contains("run")) {
    Work& work = find(works, request.at("run"));
    const double taken = seconds(work, request.value("calls", 1));
    Json result{{"seconds", taken}, {"peak_rss_bytes", peak_rss_bytes()}};
    result.update(work.report());
    return result;
  }
  if (request.contains("release")) {
    works.erase(request.at("release").get<std::string>());
    return Json::object();
  }
  fail(ExitCode::usage, "valid requests: prepare, run, release; found {}", request.dump());
}

}  // namespace

double seconds(Work& work, int calls) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (int call = 0; call < calls; ++call) work.run();
  work.finish();
  return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
}

Json statistics(std::vector<double> samples) {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  return {{"count", sorted.size()},
          {"min", sorted.front()},
          {"lower_quartile", quantile(sorted, 0.25)},
          {"median", quantile(sorted, 0.5)},
          {"upper_quartile", quantile(sorted, 0.75)},
          {"max", sorted.back()},
          {"samples", std::move(samples)}};
}

std::vector<Json> measure(const std::vector<Work*>& works, int warm_up, int repetitions) {
  for (Work* work : works) {
    for (int repetition = 0; repetition < warm_up; ++repetition) seconds(*work);
  }
  std::vector<std::vector<double>> samples(works.size());
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t i = 0; i < works.size(); ++i) samples[i].push_back(seconds(*works[i]));
  }
  std::vector<Json> results;
  for (std::size_t i = 0; i < works.size(); ++i) {
    Json result{{"flops", works[i]->flops()}, {"seconds", statistics(std::move(samples[i]))}};
    result["gflops"] = works[i]->flops() / result["seconds"]["median"].get<double>() * 1e-9;
    result.update(works[i]->report());
    results.push_back(std::move(result));
  }
  return results;
}

void serve(std::istream& in, std::ostream& out, const MakeWork& make_work) {
  Works works;
  for (std::string line; std::getline(in, line);) {
    Json result;
    try {
      result = answer(Json::parse(line), works, make_work);
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    out << result.dump() << std::endl;  // whoever asked waits for the line
  }
}

AttentionKernel kernel_of(const Json& request) {
  const std::string name = request.value("kernel", "auto");
  const auto found = std::ranges::find(kAttentionKernelWords, name);
  if (found == kAttentionKernelWords.end()) {
    fail(ExitCode::usage, "kernel: found {}; valid: {}", name,
         fmt::join(kAttentionKernelWords, ", "));
  }
  return static_cast<AttentionKernel>(found - kAttentionKernelWords.begin());
}

void require_bfloat16() {
  if (!kernels::supports_bfloat16()) {
    fail(ExitCode::usage, "dtype: bfloat16 needs a processor with AVX2; valid: float32");
  }
}

std::int64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

}  // namespace cadenza::bench
