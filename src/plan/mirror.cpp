// SPDX-License-Identifier: Apache-2.0
// The backward plan, derived from the forward plan's tasks and moves alone, so that it holds for
// every placement. Servers keep nothing between the passes (DistCA's "resend" mode, distca section
// 1): memory on a server is bounded by one tick. Gradients are sums, so their moves say all: no
// merges.
#include "order.hpp"

namespace cadenza::plan {
namespace {

class Mirror {
 public:
  explicit Mirror(const Plan& forward) : shape_(forward.workload.shape) {
    for (const Stage& stage : forward.stages) add_stage(stage);
    // Results travel when all tasks have run: in the forward plan's stage of results, if it ends
    // with one.
    if (!returns_.moves.empty()) {
      if (!stages_.empty() && stages_.back().tasks.empty() && stages_.back().moves.empty()) {
        stages_.pop_back();
      }
      stages_.push_back(std::move(returns_));
    }
    for (Stage& stage : stages_) sort_stage(stage);
  }

  std::vector<Stage> take() { return std::move(stages_); }

 private:
  void add_stage(const Stage& forward) {
    Stage& stage = stages_.emplace_back();
    for (const Move& move : forward.moves) add_move(stage, move);
    for (const PlacedTask& placed : forward.tasks) {
      stage.tasks.push_back({placed.server, placed.task, placed.cost * kBackwardFlopsRatio});
    }
  }

  void add_move(Stage& stage, const Move& move) {
    switch (move.what) {
      case Tensor::q:
        for (Tensor what : {Tensor::q, Tensor::dout, Tensor::lse, Tensor::delta}) {
          stage.moves.push_back(like(move, what, move.from, move.to));
        }
        break;
      case Tensor::k:
        stage.moves.push_back(move);
        returns_.moves.push_back(like(move, Tensor::dk, move.to, move.from));
        break;
      case Tensor::v:
        stage.moves.push_back(move);
        returns_.moves.push_back(like(move, Tensor::dv, move.to, move.from));
        break;
      case Tensor::o:
        returns_.moves.push_back(like(move, Tensor::dq, move.from, move.to));
        break;
      default:  // LSE returns with O; the others are no part of a forward plan.
        break;
    }
  }

  Move like(const Move& move, Tensor what, Rank from, Rank to) const {
    return {from,
            to,
            what,
            move.document,
            move.tokens,
            move.heads,
            move_bytes(shape_, what, move.tokens, move.heads)};
  }

  AttentionShape shape_;
  std::vector<Stage> stages_;
  Stage returns_;
};

}  // namespace

Plan mirror(const Plan& forward) {
  Plan backward;
  backward.workload = forward.workload;
  backward.stages = Mirror(forward).take();
  add_totals(backward);
  return backward;
}

}  // namespace cadenza::plan
