// SPDX-License-Identifier: Apache-2.0
// Shared by the validator's rules: the pass that they check, the plan by document, and the list of
// faults.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

/// The tensors that tasks read and produce in a pass. LSE is a result of the forward pass and an
/// input of the backward pass.
struct PassTensors {
  std::string_view name;
  std::vector<Tensor> query_inputs;
  std::vector<Tensor> key_inputs;
  std::vector<Tensor> query_results;
  std::vector<Tensor> key_results;
  double cost_ratio = 1;  ///< cost of a task divided by its forward FLOPs

  bool reads(Tensor what) const;
  bool produces(Tensor what) const;
};
const PassTensors& forward_tensors();
const PassTensors& backward_tensors();

/// Faults found so far, one line each.
class Faults {
 public:
  /// @param prefix  begins every line
  explicit Faults(std::string prefix) : prefix_(std::move(prefix)) {}

  template <typename... Args>
  void add(std::string_view rule, fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(
        fmt::format("{}{}: {}", prefix_, rule, fmt::format(format, std::forward<Args>(args)...)));
  }
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::string prefix_;
  std::vector<std::string> lines_;
};

std::string describe(Range range);  ///< "[0,128)"
std::string describe(Band band);    ///< "keys i-inf to i+0"
std::string describe(const Move& move);
std::string describe(const PlacedTask& placed);

/// The parts of a plan that belong to one document, in order of stages.
struct DocumentView {
  template <typename Part>
  struct Staged {
    std::size_t stage = 0;
    const Part* part = nullptr;
  };
  int document = 0;
  std::vector<Staged<PlacedTask>> tasks;
  std::vector<Staged<Move>> moves;
  std::vector<const Merge*> merges;
};
std::vector<DocumentView> by_document(const Plan& plan);

// --- The rules. check_form must find no fault before others run: they rely on its ranges ---
void check_form(const Plan& plan, const PassTensors& pass, Faults& faults);
void check_coverage(const Workload& workload, const DocumentView& view, Faults& faults);
/// @param kept  the forward plan's view where servers kept its inputs, else null
void check_presence(const Workload& workload, const Homes& homes, const DocumentView& view,
                    const PassTensors& pass, const DocumentView* kept, bool gathers_all,
                    Faults& faults);
/// @param merged  whether the plan's merges must name each row's owner and contributors
void check_merging(const Workload& workload, const Homes& homes, const DocumentView& view,
                   const PassTensors& pass, bool merged, Faults& faults);
/// @param makes  whether the plan makes the index; otherwise owners have it already
void check_index(const Plan& plan, bool makes, Faults& faults);
void check_totals(const Plan& plan, const PassTensors& pass, Faults& faults);

}  // namespace cadenza::plan
