// SPDX-License-Identifier: Apache-2.0
// What is timed, and the two ways of timing it: so many repetitions in a row, or one repetition
// whenever another program asks for it, so that two programs can alternate.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>

#include "cadenza/base/attention_kernel.hpp"

namespace cadenza::bench {

using Json = nlohmann::json;

/// Something that can be repeated. Constructing it is not timed.
class Work {
 public:
  virtual ~Work() = default;
  /// One repetition, from its inputs to its results, which on a device need not be finished.
  virtual void run() = 0;
  /// Waits until all that run() began is finished.
  virtual void finish() {}
  /// FLOPs that a repetition counts for.
  virtual double flops() const = 0;
  /// What else the last repetition has to say.
  virtual Json report() const { return Json::object(); }
};

/// Makes the work that a request describes. @throws Error(usage)
using MakeWork = std::function<std::unique_ptr<Work>(const Json& request)>;

/// Wall-clock seconds of one of `calls` repetitions in a row, with one finish() at their end: on a
/// device the wait for a short repetition would otherwise count as much as the repetition.
double seconds(Work& work, int calls = 1);

/// Statistics of samples: count, min, lower quartile, median, upper quartile, max, and the samples.
Json statistics(std::vector<double> samples);

/// Runs all of `works` `warm_up` times untimed, then one after another, `repetitions` times.
/// @return for each: flops, seconds (statistics), gflops (of the median), what it reports
std::vector<Json> measure(const std::vector<Work*>& works, int warm_up, int repetitions);

/// Answers requests, one JSON object a line, with one JSON object a line, until `in` ends:
///   {"prepare": NAME, "work": {...}}  ->  {"flops": F}
///   {"run": NAME, "calls": N}         ->  {"seconds": S, "peak_rss_bytes": B, ...}  (N or else 1)
///   {"release": NAME}                 ->  {}
/// A request that fails is answered {"error": MESSAGE}.
void serve(std::istream& in, std::ostream& out, const MakeWork& make_work);

/// The attention kernel that a request names as attention.kernel does, "auto" if it names none.
/// @throws Error(usage)
AttentionKernel kernel_of(const Json& request);

/// @throws Error(usage) on a processor without bfloat16 products
void require_bfloat16();

/// Largest resident memory of this process so far (VmHWM), bytes; 0 where the system does not say.
std::int64_t peak_rss_bytes();

}  // namespace cadenza::bench
