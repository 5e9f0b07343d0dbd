// SPDX-License-Identifier: Apache-2.0
#include "exec/trainer.hpp"

#include <optional>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::exec {
namespace {

constexpr int kTag = 3000;
constexpr int kChannel = 3000;

/// Collects the tensors of one kind (values or a moment) on rank 0.
template <typename Sum>
class Collector {
 public:
  Collector(const config::Experiment& experiment, const program::Layout& layout,
            comm::Communicator& trainers)
      : experiment_(experiment), layout_(layout), trainers_(trainers) {}

  /// @param mine  all elements of this rank's parameters
  /// @param write  called on rank 0 with each whole parameter and its values
  template <typename Write>
  void collect(const model::ParameterTable& table, const Sum* mine, Write write) {
    const program::Coordinates at = layout_.coordinates(trainers_.rank());
    if (trainers_.rank() == 0) {
      receive_all(table, mine, write);
    } else if (at.data == 0 && at.context == 0) {
      for (const model::ParameterInfo& info : table.entries) {
        if (info.replicated && at.tensor > 0) continue;
        const std::span part(mine + info.offset, static_cast<std::size_t>(info.count()));
        trainers_.post_send(std::as_bytes(part), 0, kTag, kChannel);
      }
      trainers_.wait(kChannel);
    }
  }

 private:
  /// Receives the slices of all tensor ranks, stage by stage and entry by entry, and writes each
  /// whole parameter.
  template <typename Write>
  void receive_all(const model::ParameterTable& own, const Sum* mine, Write& write) {
    for (int stage = 0; stage < layout_.pipeline(); ++stage) {
      std::vector<model::ParameterTable> tables;
      for (int tensor = 0; tensor < layout_.tensor(); ++tensor) {
        const Rank rank = layout_.rank({0, stage, tensor, 0});
        tables.push_back(
            model::make_parameter_table(experiment_.model, model_part(experiment_, layout_, rank)));
      }
      for (std::size_t entry = 0; entry < tables.front().entries.size(); ++entry) {
        receive_entry(stage, tables, entry, own, mine, write);
      }
    }
  }

  template <typename Write>
  void receive_entry(int stage, const std::vector<model::ParameterTable>& tables, std::size_t entry,
                     const model::ParameterTable& own, const Sum* mine, Write& write) {
    const model::ParameterInfo& first = tables.front().entries[entry];
    whole_.resize(static_cast<std::size_t>(first.whole_count()));
    for (int tensor = 0; tensor < layout_.tensor(); ++tensor) {
      const model::ParameterInfo& info = tables[at(tensor)].entries[entry];
      if (info.replicated && tensor > 0) break;
      const Rank rank = layout_.rank({0, stage, tensor, 0});
      const Sum* from = mine + own.entries[rank == 0 ? entry : 0].offset;
      if (rank != 0) {
        block_.resize(static_cast<std::size_t>(info.count()));
        trainers_.post_receive(std::as_writable_bytes(std::span(block_)), rank, kTag, kChannel);
        trainers_.wait(kChannel);
        from = block_.data();
      }
      model::place_block(info, from, whole_.data());
    }
    write(first, whole_.data());
  }

  const config::Experiment& experiment_;
  const program::Layout& layout_;
  comm::Communicator& trainers_;
  std::vector<Sum> whole_;
  std::vector<Sum> block_;
};

}  // namespace

template <typename Real>
void write_checkpoint(const config::Experiment& experiment, const program::Layout& layout,
                      comm::Communicator& trainers, const model::Parameters<Real>& parameters,
                      GradientReducer<Real>& gradients, const SparseEstimates& estimates,
                      const config::FileContents& contents, const std::string& path,
                      std::int64_t step) {
  using Sum = Accumulator<Real>;
  std::optional<model::CheckpointWriter> writer;
  std::optional<Error> failure;  // thrown once all is received: other ranks go on sending
  const auto attempt = [&](auto action) {
    if (failure || trainers.rank() != 0) return;
    try {
      action();
    } catch (const Error& error) {
      failure = error;
    }
  };
  attempt([&] { writer.emplace(path, step, experiment, contents); });
  Collector<Sum> collector(experiment, layout, trainers);
  const auto write = [&](const std::string& prefix, const Sum* mine) {
    collector.collect(
        parameters.table, mine, [&](const model::ParameterInfo& info, const Sum* values) {
          attempt([&] { writer->write(prefix + info.name, model::whole_shape(info), values); });
        });
  };
  write("", gradients.gather_masters().data());
  write(model::kFirstMomentPrefix, gradients.gather_owned(parameters.first_moment).data());
  write(model::kSecondMomentPrefix, gradients.gather_owned(parameters.second_moment).data());
  attempt([&] {
    writer->write(estimates);
    writer->finish();
  });
  if (failure) throw *failure;
}

#define CADENZA_INSTANTIATE(Real)                                                     \
  template void write_checkpoint(const config::Experiment&, const program::Layout&,   \
                                 comm::Communicator&, const model::Parameters<Real>&, \
                                 GradientReducer<Real>&, const SparseEstimates&,      \
                                 const config::FileContents&, const std::string&, std::int64_t);
CADENZA_INSTANTIATE(bfloat16)
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
