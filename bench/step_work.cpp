// SPDX-License-Identifier: Apache-2.0
#include "step_work.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/exec/executor.hpp"

namespace cadenza::bench {
namespace {

constexpr std::size_t kEvents = 1 << 16;  // recorded and dropped, as a run records and writes them

template <typename Real>
class StepWork final : public Work {
 public:
  explicit StepWork(const config::Experiment& experiment)
      : experiment_(experiment),
        world_(comm::make_self()),
        corpus_(data::open_corpus(experiment_.data, experiment_.model.vocab, experiment_.seed)),
        packer_(*corpus_, experiment_),
        recorder_(kEvents),
        tracer_(recorder_, ledger_, experiment_.trace.events, experiment_.trace.memory),
        executor_(experiment_, *world_, *corpus_, tracer_, ledger_) {}

  void run() override {
    recorder_.clear();
    tracer_.begin_step(step_);
    const program::StepPlan plan = program::plan_step(experiment_, packer_, 0, step_++);
    result_ = executor_.run(plan);
    fence();
  }
  double flops() const override {
    return cost::step_flops(experiment_.model, experiment_.attention,
                            experiment_.data.lengths.values);
  }
  Json report() const override {
    return {{"loss", result_.loss}, {"tokens", experiment_.batch.tokens}};
  }

 private:
  config::Experiment experiment_;
  std::unique_ptr<comm::Communicator> world_;
  std::unique_ptr<data::Corpus> corpus_;
  data::Packer packer_;
  MemoryLedger ledger_;
  trace::Recorder recorder_;
  exec::Tracer tracer_;
  exec::Executor<Real> executor_;
  exec::StepResult result_;
  std::int64_t step_ = 0;
};

}  // namespace

config::Experiment step_experiment(const Json& request) {
  const auto documents = request.at("documents").get<std::vector<std::int64_t>>();
  const auto empty = [](std::int64_t length) { return length < 1; };
  if (documents.empty() || std::any_of(documents.begin(), documents.end(), empty)) {
    fail(ExitCode::usage, "documents are lengths of at least 1 token");
  }
  config::Experiment e;
  e.model.layers = request.at("layers");
  e.model.d_model = request.at("d_model");
  e.model.heads = request.at("heads");
  e.model.kv_heads = request.at("kv_heads");
  e.model.ffn = request.at("ffn");
  e.model.vocab = request.at("vocab");
  const std::int64_t tokens = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
  e.data.source = config::Source::synthetic;
  e.data.documents = static_cast<std::int64_t>(documents.size());
  e.data.lengths.distribution = config::Distribution::list;
  e.data.lengths.values = documents;
  e.data.max_document = tokens;
  e.batch.tokens = e.batch.microbatch = tokens;
  e.attention.kernel = kernel_of(request);
  e.optimizer.clip = 0;  // the peers do not clip either
  e.optimizer.schedule = config::Schedule::constant;
  e.run.steps = std::numeric_limits<std::int32_t>::max();
  return e;
}

std::unique_ptr<Work> make_step(const Json& request) {
  config::Experiment experiment = step_experiment(request);
  const std::string dtype = request.at("dtype");
  if (dtype == "float32") return std::make_unique<StepWork<float>>(experiment);
  if (dtype == "bfloat16") {
    require_bfloat16();
    experiment.run.dtype = config::Dtype::bfloat16;
    return std::make_unique<StepWork<bfloat16>>(experiment);
  }
  fail(ExitCode::usage, "dtype: found {}; valid: float32, bfloat16", dtype);
}

}  // namespace cadenza::bench
