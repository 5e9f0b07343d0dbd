// SPDX-License-Identifier: Apache-2.0
#include "unit/model/layout.hpp"

#include <functional>
#include <memory>

#include "unit/model/lockstep.hpp"
#include "unit/model/subject.hpp"

namespace cadenza::model::test {
namespace {

constexpr double kScale = 0.25;

TokenBatch rows_of(const TokenBatch& batch, Range rows) {
  const auto cut = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin() + rows.begin, all.begin() + rows.end);
  };
  return {cut(batch.tokens), cut(batch.positions), cut(batch.targets)};
}

/// A rank's block of a whole parameter.
Vector take_block(const ParameterInfo& info, const double* whole) {
  Vector block;
  for (std::int64_t i = 0; i < info.count(); ++i) {
    const std::int64_t row = info.is_matrix() ? i / info.columns : i;
    const std::int64_t column = info.is_matrix() ? i % info.columns : 0;
    const std::int64_t stride = info.is_matrix() ? info.whole_columns : 1;
    block.push_back(whole[(info.row_begin + row) * stride + info.column_begin + column]);
  }
  return block;
}

/// One rank: its part of the model.
template <typename Real>
class Piece {
 public:
  using Sum = Accumulator<Real>;

  Piece(const config::Model& model, const ModelPart& part, Capacity capacity, const Layout& layout,
        const Vector& values, TensorGroup<Sum>* group)
      : part_(part),
        layout_(layout),
        local_(model),
        rotary_(attention::make_rotary_table<Sum>(
            ledger_, capacity.rows,
            rotary_frequencies(model.rope, static_cast<int>(model.head_dim())))),
        parameters(make_parameters<Real>(model, part, 1, ledger_, {})),
        llama(model, part, capacity, layout.recompute, rotary_, parameters, group, ledger_) {
    local_.own_head_dim = model.head_dim();
    local_.heads /= part.tensor_size;
    local_.kv_heads /= part.tensor_size;
    std::map<std::string, std::int64_t> offsets;
    for (const ParameterInfo& info : whole_table(model).entries) offsets[info.name] = info.offset;
    std::vector<Sum> mine(static_cast<std::size_t>(parameters.table.elements));
    for (const ParameterInfo& info : parameters.table.entries) {
      const Vector block = take_block(info, values.data() + offsets.at(info.name));
      std::transform(block.begin(), block.end(), mine.begin() + info.offset,
                     [](double value) { return static_cast<Sum>(value); });
    }
    set_weights(parameters, {0, parameters.table.elements}, mine.data());
  }

  using Operations = std::vector<std::function<void()>>;

  /// The forward pass of these rows, in steps that end where another half may take its turn.
  Operations forward(int buffer, int chunk, const TokenBatch& batch, Range rows) {
    Operations all;
    const auto [first, last] = layers(chunk);
    for (int layer = first; layer < last; ++layer) {
      all.push_back([=, this, &batch] {
        if (layer > first) llama.attention_outputs(buffer, layer - 1, rows);
        llama.attention_inputs(buffer, layer, rows);
        attend(buffer, layer, batch, rows, true);
      });
    }
    all.push_back([=, this, last = last] { llama.attention_outputs(buffer, last - 1, rows); });
    return all;
  }

  Operations backward(int buffer, int chunk, const TokenBatch& batch, Range rows) {
    Operations all;
    const auto [first, last] = layers(chunk);
    for (int layer = last - 1; layer >= first; --layer) {
      all.push_back([=, this, &batch, last = last] {
        if (layer + 1 < last) llama.attention_inputs_gradient(buffer, layer + 1, rows);
        recompute(buffer, layer, batch, rows);
        llama.attention_outputs_gradient(buffer, layer, rows);
        attend(buffer, layer, batch, rows, false);
      });
    }
    all.push_back(
        [=, this, first = first] { llama.attention_inputs_gradient(buffer, first, rows); });
    return all;
  }

 private:
  std::pair<int, int> layers(int chunk) const {
    std::int64_t first = 0;
    for (int before = 0; before < chunk; ++before) {
      first += part_.chunks[static_cast<std::size_t>(before)].size();
    }
    const std::int64_t size = part_.chunks[static_cast<std::size_t>(chunk)].size();
    return {static_cast<int>(first), static_cast<int>(first + size)};
  }

  void recompute(int buffer, int layer, const TokenBatch& batch, Range rows) {
    using config::Recompute;
    if (layout_.recompute != Recompute::attention && layout_.recompute != Recompute::layer) return;
    llama.recompute_inputs(buffer, layer, rows);
    attend(buffer, layer, batch, rows, true);
    if (layout_.recompute == Recompute::layer) llama.recompute_outputs(buffer, layer, rows);
  }

  void attend(int buffer, int layer, const TokenBatch& whole, Range rows, bool forward) {
    const TokenBatch batch = rows_of(whole, rows);
    const ByKernels<Real> attention{{local_, rotary_, batch}};
    AttentionBuffers<Real> s = llama.attention_buffers(buffer, layer);
    const std::int64_t q = rows.begin * local_.query_width(), h = rows.begin * local_.heads;
    const std::int64_t k = rows.begin * local_.kv_heads * local_.head_dim();
    s = {s.q + q,     s.k + k,  s.v + k,  s.out + q, s.lse + h, s.dout + q,
         s.delta + h, s.dq + q, s.dk + k, s.dv + k,  s.kept + q};
    forward ? attention.forward(s) : attention.backward(s);
    fence();
  }

  ModelPart part_;
  Layout layout_;
  config::Model local_;  ///< of this rank's heads
  MemoryLedger ledger_;
  kernels::RotaryTable<Sum> rotary_;

 public:
  Parameters<Real> parameters;
  Llama<Real> llama;
};

/// One rank of the tensor group in every stage.
template <typename Real>
class Ranks {
 public:
  using Sum = Accumulator<Real>;

  Ranks(const config::Model& model, const Vector& values, const std::vector<TokenBatch>& batches,
        const Layout& layout, int tensor_rank, TensorGroup<Sum>* group)
      : layout_(layout), batches_(batches) {
    const auto microbatches = static_cast<std::int64_t>(batches.size());
    const auto rows = static_cast<std::int64_t>(batches.front().tokens.size());
    const std::int64_t parts = layout.stages * layout.chunks;
    for (std::int64_t stage = 0; stage < layout.stages; ++stage) {
      ModelPart part{{}, stage == 0, stage + 1 == layout.stages, tensor_rank, layout.tensor};
      for (std::int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
        const std::int64_t number = chunk * layout.stages + stage;
        part.chunks.push_back({number * model.layers / parts, (number + 1) * model.layers / parts});
      }
      pieces_.push_back(std::make_unique<Piece<Real>>(
          model, part,
          Capacity{rows, static_cast<int>(microbatches * layout.chunks), config::DeviceKind::host,
                   layout.tensor_sums, layout.residual},
          layout, values, group));
    }
    if (layout.halves) {
      halves_ = {{0, rows / 2}, {rows / 2, rows}};
    } else {
      halves_ = {{0, rows}};
    }
    boundary_ =
        Array<std::byte>("boundary", static_cast<std::size_t>(rows * model.d_model) * sizeof(Sum));
  }

  LayoutResult run() {
    LayoutResult result;
    const auto groups = static_cast<int>(layout_.stages * layout_.chunks);
    const auto count = static_cast<int>(batches_.size());
    for (int batch = 0; batch < count; ++batch) {
      for (int group = 0; group < groups; ++group) forward(batch, group, group == 0);
    }
    for (int batch = 0; batch < count; ++batch) {
      result.losses.push_back(loss(batch));
      for (int group = groups - 1; group >= 0; --group) {
        backward(batch, group, group == groups - 1);
      }
    }
    const Llama<Real>& first = pieces_.front()->llama;
    const Range all{halves_.front().begin, halves_.back().end};
    first.gradient(all, boundary_.data());
    const std::int64_t bytes = first.boundary_bytes(all);
    if (layout_.residual == config::Precision::sums) {
      result.dx = read_rows<Sum>(reinterpret_cast<const Sum*>(boundary_.data()),
                                 bytes / static_cast<std::int64_t>(sizeof(Sum)));
    } else {
      result.dx = read_rows<Real>(reinterpret_cast<const Real*>(boundary_.data()),
                                  bytes / static_cast<std::int64_t>(sizeof(Real)));
    }
    for (auto& piece : pieces_) {
      if (layout_.reduces_norms) piece->llama.reduce_norm_gradients();
    }
    return result;
  }

  std::vector<std::unique_ptr<Piece<Real>>>& pieces() { return pieces_; }

 private:
  Piece<Real>& piece(int group) {
    return *pieces_[static_cast<std::size_t>(group) % pieces_.size()];
  }
  int chunk(int group) const { return group / static_cast<int>(layout_.stages); }
  int buffer(int batch, int group) const {
    return batch * static_cast<int>(layout_.chunks) + chunk(group);
  }
  const TokenBatch& batch_of(int batch) const { return batches_[static_cast<std::size_t>(batch)]; }

  /// Two lists in turns, the second one step behind.
  static void take_turns(const std::vector<typename Piece<Real>::Operations>& lists) {
    const std::size_t behind = lists.size() - 1;
    for (std::size_t i = 0; i < lists.front().size() + behind; ++i) {
      for (std::size_t half = 0; half < lists.size(); ++half) {
        if (i >= half && i - half < lists[half].size()) lists[half][i - half]();
      }
    }
  }

  void forward(int batch, int group, bool first) {
    Piece<Real>& p = piece(group);
    p.llama.set_batch(buffer(batch, group), chunk(group), batch_of(batch));
    std::vector<typename Piece<Real>::Operations> lists;
    for (const Range rows : halves_) {
      if (first) {
        p.llama.embed(buffer(batch, group), rows);
      } else {
        Piece<Real>& before = piece(group - 1);
        before.llama.output(buffer(batch, group - 1), rows, boundary_.data());
        p.llama.set_input(buffer(batch, group), rows, boundary_.data());
      }
      lists.push_back(p.forward(buffer(batch, group), chunk(group), batch_of(batch), rows));
    }
    take_turns(lists);
  }

  double loss(int batch) {
    const auto group = static_cast<int>(layout_.stages * layout_.chunks) - 1;
    double sum = 0;
    for (auto rows = halves_.rbegin(); rows != halves_.rend(); ++rows) {
      sum += piece(group).llama.loss(buffer(batch, group), *rows, kScale);
    }
    return sum;
  }

  void backward(int batch, int group, bool last) {
    Piece<Real>& p = piece(group);
    std::vector<typename Piece<Real>::Operations> lists;
    for (auto rows = halves_.rbegin(); rows != halves_.rend(); ++rows) {
      if (!last) {
        piece(group + 1).llama.gradient(*rows, boundary_.data());
        p.llama.set_gradient(*rows, boundary_.data());
      }
      lists.push_back(p.backward(buffer(batch, group), chunk(group), batch_of(batch), *rows));
    }
    take_turns(lists);
    for (const Range rows : halves_) {
      if (group == 0) p.llama.embed_gradient(buffer(batch, group), rows);
    }
  }

  Layout layout_;
  const std::vector<TokenBatch>& batches_;
  std::vector<std::unique_ptr<Piece<Real>>> pieces_;
  std::vector<Range> halves_;
  Array<std::byte> boundary_;
};

template <typename Real>
void assemble(Ranks<Real>& ranks, std::map<std::string, Vector>& gradients) {
  for (auto& piece : ranks.pieces()) {
    const Vector all = download_double(piece->parameters.gradients);
    for (const ParameterInfo& info : piece->parameters.table.entries) {
      Vector& whole = gradients[info.name];
      whole.resize(static_cast<std::size_t>(info.whole_count()), std::nan(""));
      place_block(info, all.data() + info.offset, whole.data());
    }
  }
}

}  // namespace

template <typename Real>
LayoutResult run_layout(const config::Model& model, const Vector& values,
                        const std::vector<TokenBatch>& batches, const Layout& layout) {
  LayoutResult result;
  std::vector<Vector> dx(static_cast<std::size_t>(layout.tensor));
  Rendezvous meeting(layout.tensor);
  const auto rank_main = [&](int rank) {
    LockstepGroup<Accumulator<Real>> group(meeting, rank);
    Ranks<Real> ranks(model, values, batches, layout, rank, &group);
    const LayoutResult mine = ranks.run();
    if (!result.losses.empty() && mine.losses != result.losses) {
      throw std::logic_error("ranks of a tensor group disagree on the loss");
    }
    result.losses = mine.losses;
    dx[static_cast<std::size_t>(rank)] = mine.dx;
    assemble(ranks, result.gradients);
  };
  if (layout.tensor == 1) {
    rank_main(0);
  } else {
    meeting.run(rank_main);
  }
  // Each half is in rank order.
  const std::size_t halves = layout.halves ? 2 : 1;
  for (std::size_t half = 0; half < halves; ++half) {
    for (const Vector& part : dx) {
      const auto size = static_cast<std::ptrdiff_t>(part.size() / halves);
      const auto begin = part.begin() + static_cast<std::ptrdiff_t>(half) * size;
      result.dx.insert(result.dx.end(), begin, begin + size);
    }
  }
  return result;
}

template LayoutResult run_layout<float>(const config::Model&, const Vector&,
                                        const std::vector<TokenBatch>&, const Layout&);
template LayoutResult run_layout<double>(const config::Model&, const Vector&,
                                         const std::vector<TokenBatch>&, const Layout&);
template LayoutResult run_layout<bfloat16>(const config::Model&, const Vector&,
                                           const std::vector<TokenBatch>&, const Layout&);

}  // namespace cadenza::model::test
