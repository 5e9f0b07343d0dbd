// SPDX-License-Identifier: Apache-2.0
#include "kernel_work.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/model/parameters.hpp"
#include "step_work.hpp"

namespace cadenza::bench {
namespace {

using Real = float;

class KernelWork final : public Work {
 public:
  explicit KernelWork(const config::Experiment& experiment)
      : experiment_(experiment),
        shape_(config::attention_shape(experiment.model)),
        part_(model::whole_model(experiment.model)),
        rotary_(attention::make_rotary_table<Real>(
            ledger_, experiment.batch.tokens,
            model::rotary_frequencies(experiment.model.rope, shape_.head_dim))),
        parameters_(model::make_parameters<Real>(
            experiment.model, part_, experiment.seed, ledger_,
            model::all_elements(model::make_parameter_table(experiment.model, part_)))),
        llama_(experiment.model, part_, model::Capacity{experiment.batch.tokens, 1},
               config::Recompute::none, rotary_, parameters_, nullptr, ledger_) {
    read_batch();
  }

  void run() override {
    Kokkos::deep_copy(parameters_.gradients, Real(0));
    llama_.set_batch(0, 0, batch_);
    forward();
    backward();
    const double norm = std::sqrt(model::squared_gradient_norm(parameters_));
    const double rate = model::learning_rate(experiment_.optimizer, step_, experiment_.run.steps);
    model::adamw(parameters_, experiment_.optimizer, rate, norm, step_++);
    fence();
  }
  double flops() const override {
    return cost::step_flops(experiment_.model, experiment_.attention,
                            experiment_.data.lengths.values);
  }
  Json report() const override { return {{"loss", loss_}}; }

 private:
  int layers() const { return static_cast<int>(experiment_.model.layers); }

  /// The documents of the first step of the same experiment.
  void read_batch() {
    const auto corpus =
        data::open_corpus(experiment_.data, experiment_.model.vocab, experiment_.seed);
    const data::Packer packer(*corpus, experiment_);
    const data::Microbatch microbatch = packer.batch(0).microbatches.at(0);
    for (const data::Token token : data::read_tokens(*corpus, microbatch)) {
      batch_.tokens.push_back(token);
    }
    std::int64_t row = 0;
    for (const data::BatchDocument& document : microbatch.documents) {
      documents_.push_back({row, row + document.length()});
      for (std::int64_t i = 0; i < document.length(); ++i, ++row) {
        batch_.positions.push_back(static_cast<std::int32_t>(i));
        const bool last = i + 1 == document.length();
        batch_.targets.push_back(last ? -1 : batch_.tokens[static_cast<std::size_t>(row) + 1]);
        if (!last) ++targets_;
      }
    }
    rows_ = {0, row};
  }

  /// Every document of a layer as one causal task.
  const kernels::TaskList<Real>& attention_of(int layer) {
    const model::AttentionBuffers<Real> buffers = llama_.attention_buffers(0, layer);
    const std::int64_t query = static_cast<std::int64_t>(shape_.heads) * shape_.head_dim;
    const std::int64_t key = static_cast<std::int64_t>(shape_.kv_heads) * shape_.head_dim;
    list_.queries.clear();
    list_.keys.clear();
    list_.tasks.clear();
    for (const Range& rows : documents_) {
      const int index = static_cast<int>(list_.tasks.size());
      const Range tokens{0, rows.size()};
      const std::int64_t statistic = rows.begin * shape_.heads;
      const std::int64_t first = rows.begin * query;
      list_.queries.push_back({tokens, buffers.q + first, buffers.out + first,
                               buffers.lse + statistic, buffers.dout + first,
                               buffers.delta + statistic, buffers.dq + first});
      const std::int64_t first_key = rows.begin * key;
      list_.keys.push_back({tokens, buffers.k + first_key, buffers.v + first_key,
                            buffers.dk + first_key, buffers.dv + first_key});
      const Task task{index, tokens, tokens, {0, shape_.heads}, Band::causal()};
      list_.tasks.push_back({task, index, index});
    }
    return list_;
  }

  void forward() {
    llama_.embed(0, rows_);
    for (int layer = 0; layer < layers(); ++layer) {
      llama_.attention_inputs(0, layer, rows_);
      kernels::attention_forward(shape_, rotary_, attention_of(layer));
      llama_.attention_outputs(0, layer, rows_);
    }
  }

  void backward() {
    const double scale = 1.0 / static_cast<double>(targets_);
    loss_ = llama_.loss(0, rows_, scale) * scale;
    for (int layer = layers() - 1; layer >= 0; --layer) {
      llama_.attention_outputs_gradient(0, layer, rows_);
      const model::AttentionBuffers<Real> buffers = llama_.attention_buffers(0, layer);
      attention::delta<Real>(buffers.kept, buffers.dout, rows_.size(), shape_.heads,
                             shape_.head_dim, buffers.delta);
      kernels::attention_backward(shape_, rotary_, attention_of(layer));
      llama_.attention_inputs_gradient(0, layer, rows_);
    }
    llama_.embed_gradient(0, rows_);
  }

  config::Experiment experiment_;
  AttentionShape shape_;
  model::ModelPart part_;
  MemoryLedger ledger_;
  kernels::RotaryTable<Real> rotary_;
  model::Parameters<Real> parameters_;
  model::Llama<Real> llama_;
  model::TokenBatch batch_;
  std::vector<Range> documents_;  ///< their rows
  Range rows_;
  std::int64_t targets_ = 0;
  kernels::TaskList<Real> list_;
  std::int64_t step_ = 0;
  double loss_ = 0;
};

}  // namespace

std::unique_ptr<Work> make_kernels(const Json& request) {
  const std::string dtype = request.at("dtype");
  if (dtype != "float32") fail(ExitCode::usage, "dtype: found {}; valid: float32", dtype);
  return std::make_unique<KernelWork>(step_experiment(request));
}

}  // namespace cadenza::bench
