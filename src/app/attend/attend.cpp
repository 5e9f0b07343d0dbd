// SPDX-License-Identifier: Apache-2.0
// Core attention alone: reads Q, K, V from a file, computes with a placement and real messages,
// writes results to a file.
#include <algorithm>
#include <memory>
#include <span>

#include "app/attend/attend_files.hpp"
#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/index_file.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/exec/exchange.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {
namespace {

using program::Pass;

/// Reduces an experiment to one layer and one tick: all that attention needs.
config::Experiment one_layer(config::Experiment e) {
  const auto require_one = [](std::int64_t found, const char* key) {
    if (found == 1) return;
    fail(ExitCode::usage,
         "{}: found {}; valid for cadenza attend: 1 (it uses only data and context ranks and "
         "dedicated servers)",
         key, found);
  };
  require_one(e.parallel.pipeline, "parallel.pipeline");
  require_one(e.parallel.tensor, "parallel.tensor");
  e.model.layers = 1;
  e.attention.layers.clear();
  if (!e.attention.sparse.heads.empty()) {
    fail(ExitCode::usage,
         "attention.sparse.budgets: found {}; valid for cadenza attend: none (its heads are those "
         "of no layer)",
         e.attention.sparse.budgets);
  }
  e.batch.tokens = e.batch.microbatch * e.parallel.data;
  e.run.recompute = config::Recompute::none;
  return e;
}

/// Deals whole documents to data ranks in order; each goes to the rank whose equal share of the
/// tokens contains its centre.
std::vector<data::Microbatch> deal(const AttendProblem& problem, std::int64_t data_ranks) {
  std::vector<data::Microbatch> microbatches(static_cast<std::size_t>(data_ranks));
  std::int64_t before = 0;
  for (std::size_t document = 0; document < problem.lengths.size(); ++document) {
    const std::int64_t length = problem.lengths[document];
    const std::int64_t rank = (2 * before + length) * data_ranks / (2 * problem.tokens);
    microbatches[at(std::min(rank, data_ranks - 1))].documents.push_back(
        {static_cast<std::int64_t>(document), {0, length}});
    before += length;
  }
  return microbatches;
}

std::vector<program::TickPlans> make_plans(const config::Experiment& experiment,
                                           const program::StepShape& step_shape,
                                           const AttendProblem& problem) {
  const std::vector<data::Microbatch> microbatches = deal(problem, experiment.parallel.data);
  std::vector<plan::Occupant> groups;
  for (const data::Microbatch& microbatch : microbatches) groups.push_back(&microbatch);
  plan::Workload workload = program::make_workload(experiment, step_shape.layout, groups);
  workload.shape = problem.shape;
  const cost::Pool pool{
      cost::Rates(load_machine(experiment.cluster), experiment.cluster, problem.shape.head_dim),
      step_shape.layout.members(0)};
  return program::plan_tick(experiment.attention, workload, program::first_documents(groups), pool);
}

/// The rows of a rank, row by row.
struct Rows {
  std::vector<std::int64_t> in_file;    ///< -1: padding between halves
  std::vector<std::int32_t> positions;  ///< of the keys
};

Rows rows_of(const std::vector<program::TickPlans>& plans, const AttendProblem& problem,
             Rank rank) {
  const plan::Workload& workload = plans.front().forward.workload;
  const exec::HomeRows home = exec::home_rows(plans.front(), rank, 1);
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t length : problem.lengths) begins.push_back(begins.back() + length);
  Rows rows;
  rows.in_file.assign(static_cast<std::size_t>(home.rows()), -1);
  rows.positions.assign(static_cast<std::size_t>(home.rows()), 0);
  for (const exec::RowPiece& piece : home.pieces) {
    const auto document = static_cast<std::size_t>(piece.document);
    for (std::int64_t i = 0; i < piece.tokens.size(); ++i) {
      const auto row = static_cast<std::size_t>(piece.row + i);
      const std::int64_t token =
          plan::position_of(workload.order, problem.lengths[document], piece.tokens.begin + i);
      rows.in_file[row] = begins[document] + token;
      rows.positions[row] = static_cast<std::int32_t>(workload.mask.key_position(token));
    }
  }
  return rows;
}

/// Returns the table for kinds that rotate Q by task, which get Q and K unrotated; the others take
/// both as given, without a table.
template <typename Sum>
kernels::RotaryTable<Sum> rotary_table(const config::Experiment& experiment,
                                       const AttendProblem& problem, MemoryLedger& ledger) {
  if (experiment.attention.kind != config::AttentionKind::dual_chunk) return {};
  const std::int64_t longest = std::ranges::max(problem.lengths);
  return attention::make_rotary_table<Sum>(
      ledger, experiment.attention.mask().positions(longest),
      model::rotary_frequencies(experiment.model.rope, problem.shape.head_dim));
}

/// The tensors of this rank's tokens and, on rank 0, the way of results to the output file. Files
/// hold sums; for bfloat16, inputs are rounded when read.
template <typename Real>
class AttendTensors {
 public:
  using Sum = Accumulator<Real>;

  AttendTensors(comm::Communicator& world, const AttendProblem& problem, config::Dtype dtype,
                const std::vector<program::TickPlans>& plans, MemoryLedger& ledger)
      : world_(world), problem_(problem), dtype_(dtype) {
    for (Rank rank = 0; rank < world.size(); ++rank) {
      rows_.push_back(rows_of(plans, problem, rank));
    }
    const std::vector<std::int32_t>& positions = mine().positions;
    positions_ =
        allocate<std::int32_t>(ledger, MemoryKind::activations, "attend", std::ssize(positions));
    auto host = Kokkos::create_mirror_view(positions_);
    std::ranges::copy(positions, host.data());
    Kokkos::deep_copy(positions_, host);
    for (std::size_t at = 0; at < sums_.size(); ++at) {
      const auto what = static_cast<plan::Tensor>(at);
      const std::int64_t elements = count(world.rank()) * width(what);
      if (exec::is_input(what)) {
        inputs_[at] = allocate<Real>(ledger, MemoryKind::activations, "attend", elements);
      } else {
        sums_[at] = allocate<Sum>(ledger, MemoryKind::activations, "attend", elements);
      }
    }
    attention::initialise(buffers().out, buffers().lse, count(world.rank()), problem.shape.heads,
                          problem.shape.head_dim);
  }

  model::AttentionBuffers<Real> buffers() {
    using plan::Tensor;
    const auto in = [&](Tensor what) { return inputs_[at(what)].data(); };
    const auto sum = [&](Tensor what) { return sums_[at(what)].data(); };
    return {in(Tensor::q),    in(Tensor::k),    in(Tensor::v),      sum(Tensor::o),
            sum(Tensor::lse), in(Tensor::dout), sum(Tensor::delta), sum(Tensor::dq),
            sum(Tensor::dk),  sum(Tensor::dv)};
  }

  /// @throws Error(numerics) if a number of the whole dataset is not finite as Real
  void load(const storage::File& file, const char* dataset, plan::Tensor what) {
    // A bfloat16 is rounded once, from the file's number; the reader converts to other types.
    using Given = std::conditional_t<std::is_same_v<Real, bfloat16>, double, Real>;
    const std::vector<Given> all = file.read<Given>(dataset, file.shape(dataset));
    const auto rounded = [](Given value) { return static_cast<Sum>(static_cast<Real>(value)); };
    if (const auto found = non_finite(what, all, rounded)) {
      fail(ExitCode::numerics,
           "{}: {}: token {}, head {} holds {}; valid: numbers that are finite in {}", file.path(),
           dataset, found->token, found->head, found->value, word_of(dtype_));
    }
    const Array<Real>& rows = inputs_[at(what)];
    auto host = Kokkos::create_mirror_view(rows);
    Real* to = host.data();
    for (const std::int64_t row : mine().in_file) {
      const Given* from = all.data() + row * width(what);
      to = std::transform(from, from + width(what), to,
                          [](Given value) { return static_cast<Real>(value); });
    }
    Kokkos::deep_copy(rows, host);
  }

  /// Does what the model does around attention: rotates K before it, turns dK back after it.
  void rotate_keys(const kernels::RotaryTable<Sum>& table) {
    attention::rotate_keys<Real>(table, buffers().k, positions_, count(world_.rank()),
                                 problem_.shape.kv_heads, problem_.shape.head_dim);
  }
  void turn_back_keys(const kernels::RotaryTable<Sum>& table) {
    attention::turn_back_keys<Sum>(table, buffers().dk, positions_, count(world_.rank()),
                                   problem_.shape.kv_heads, problem_.shape.head_dim);
  }

  /// Returns all ranks' rows of `what` on rank 0, in file order. Collective.
  std::vector<Sum> collect(plan::Tensor what) {
    auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, sums_[at(what)]);
    std::vector<Sum> all;
    if (world_.rank() != 0) {
      world_.post_send(std::as_bytes(std::span<Sum>(host.data(), host.extent(0))), 0, 0, 0);
      world_.wait(0);
      return all;
    }
    all.resize(static_cast<std::size_t>(problem_.tokens * width(what)));
    put(0, what, host.data(), all);
    for (Rank rank = 1; rank < world_.size(); ++rank) {
      std::vector<Sum> part(static_cast<std::size_t>(count(rank) * width(what)));
      world_.post_receive(std::as_writable_bytes(std::span(part)), rank, 0, 0);
      world_.wait(0);
      put(rank, what, part.data(), all);
    }
    return all;
  }

  /// @throws Error(numerics) if a result is not finite
  void write(storage::NewFile& output, const char* dataset, plan::Tensor what,
             const std::vector<Sum>& values) const {
    if (const auto found = non_finite(what, values, [](Sum value) { return value; })) {
      fail(ExitCode::numerics,
           "{}: {}: token {}, head {} is {} although all inputs are finite: the inputs are too "
           "large for {}; nothing was written",
           output.path(), dataset, found->token, found->head, found->value, word_of(dtype_));
    }
    output.file().write(dataset, shape(what), values.data());
  }

 private:
  storage::Shape shape(plan::Tensor what) const {
    const auto size = [](std::int64_t value) { return static_cast<hsize_t>(value); };
    const int heads = plan::is_key_side(what) ? problem_.shape.kv_heads : problem_.shape.heads;
    if (what == plan::Tensor::lse) return {size(problem_.tokens), size(heads)};
    return {size(problem_.tokens), size(heads), size(problem_.shape.head_dim)};
  }
  template <typename Number, typename F>
  std::optional<NonFinite> non_finite(plan::Tensor what, const std::vector<Number>& values,
                                      const F& value_of) const {
    return first_non_finite(std::span(values), width(what), exec::home_heads(problem_.shape, what),
                            value_of);
  }
  std::int64_t width(plan::Tensor what) const {
    return exec::home_heads(problem_.shape, what) * exec::head_elements(problem_.shape, what);
  }
  const Rows& mine() const { return rows_[at(world_.rank())]; }
  std::int64_t count(Rank rank) const { return std::ssize(rows_[at(rank)].in_file); }
  void put(Rank rank, plan::Tensor what, const Sum* from, std::vector<Sum>& all) const {
    for (const std::int64_t row : rows_[at(rank)].in_file) {
      std::copy_n(from, width(what), all.begin() + row * width(what));
      from += width(what);
    }
  }

  comm::Communicator& world_;
  const AttendProblem& problem_;
  config::Dtype dtype_;
  std::vector<Rows> rows_;              ///< by rank
  Array<std::int32_t> positions_;       ///< of this rank's keys
  std::array<Array<Real>, 10> inputs_;  ///< by plan::Tensor, where exec::is_input
  std::array<Array<Sum>, 10> sums_;     ///< by plan::Tensor, all others
};

template <typename Real>
using Exchanges = std::vector<std::unique_ptr<exec::AttentionExchange<Real>>>;

/// Runs the attention operations of a one-layer program.
template <typename Real>
void run_program(const Exchanges<Real>& exchanges, const program::Program& program, Pass pass,
                 const model::AttentionBuffers<Real>& home) {
  for (const auto& exchange : exchanges) exchange->set_context({0, 0, pass, false, 0, home});
  for (const program::Instruction& instruction : program.instructions) {
    if (instruction.pass != pass) continue;
    if (!program::is_attention(instruction.operation))
      continue;  // dense operation of a training instruction
    exchanges[at(instruction.half)]->run(instruction.operation, instruction.stage);
  }
}

/// Collects every pattern on every rank from the ranks that own parts of them. Collective.
/// @param mine  [documents, heads] that this rank owns; empty if attention is dense
std::vector<SparsePattern> share_patterns(comm::Communicator& world, const plan::Workload& workload,
                                          std::span<const SparsePattern> mine) {
  std::vector<SparsePattern> all(mine.begin(), mine.end());
  if (all.empty()) return all;
  const SparseRule& rule = workload.sparse;
  for (const plan::IndexParts& parts : plan::index_parts(workload)) {
    const std::int64_t length = workload.lengths[at(parts.document)];
    for (std::size_t n = 0; n < parts.holders.size(); ++n) {
      const plan::OwnedIndex owned = plan::owned_index(workload, parts, n);
      if (owned.empty()) continue;
      const auto words = static_cast<std::size_t>(rule.pattern_words(length, owned.tokens));
      for (std::int64_t head = owned.heads.begin; head < owned.heads.end; ++head) {
        const auto place =
            static_cast<std::size_t>(parts.document * std::int64_t{workload.shape.heads} + head);
        std::vector<std::uint64_t> packed(words, 0);
        if (parts.holders[n] == world.rank()) rule.pack(mine[place], owned.tokens, packed);
        world.all_reduce(std::span(packed), comm::Reduction::sum);
        if (all[place].length() == 0) all[place] = rule.diagonal(length);
        rule.unpack(packed, owned.tokens, all[place]);
      }
    }
  }
  return all;
}

/// Writes the results. Leaves no output unless all of it is finite and written.
template <typename Real>
void write_results(comm::Communicator& world, AttendTensors<Real>& rows,
                   const AttendProblem& problem, const plan::Workload& workload,
                   std::span<const SparsePattern> owned, const CommandLine& line) {
  using plan::Tensor;
  std::vector<std::pair<const char*, Tensor>> results = {{"out", Tensor::o}, {"lse", Tensor::lse}};
  if (problem.backward) {
    results.insert(results.end(), {{"dq", Tensor::dq}, {"dk", Tensor::dk}, {"dv", Tensor::dv}});
  }
  std::optional<storage::NewFile> output;
  collectively(world, [&] {
    if (world.rank() == 0) {
      require_attend_output(line.output, line.input, line.force);  // it may exist by now
      output.emplace(line.output);
      output->file().write_attribute("schema", std::string(kAttendSchema));
    }
  });
  for (const auto& [name, what] : results) {
    const auto values = rows.collect(what);
    collectively(world, [&, name = name, what = what] {
      if (world.rank() == 0) rows.write(*output, name, what, values);
    });
  }
  const std::vector<SparsePattern> patterns = share_patterns(world, workload, owned);
  collectively(world, [&] {
    if (world.rank() != 0) return;
    if (!patterns.empty()) {
      write_index(output->file(), problem.lengths, workload.sparse, patterns);
    }
    output->finish();
  });
}

template <typename Real>
void attend_as(comm::Communicator& world, const config::Experiment& experiment,
               const CommandLine& line) {
  using plan::Tensor;
  std::optional<storage::File> input;
  AttendProblem problem;
  std::vector<program::TickPlans> plans;
  std::optional<program::StepShape> step_shape;
  std::optional<SparseIndex> given;
  const SparseRule rule = experiment.attention.sparse_rule();
  const bool sparse = rule.block > 0;
  collectively(world, [&] {
    input = storage::File::open(line.input);
    problem = read_problem(*input);
    if (world.rank() == 0) require_attend_output(line.output, line.input, line.force);
    if (!line.index.empty()) {
      given = read_index(line.index, problem.lengths, problem.shape.heads, experiment.attention);
    }
    problem.shape.element_bytes = sizeof(Real);
    problem.shape.accumulator_bytes = sizeof(Accumulator<Real>);
    step_shape.emplace(one_layer(experiment));
    plans = make_plans(experiment, *step_shape, problem);
  });
  announce_kernels<Real>(world, problem.shape, experiment.attention.kernel);
  const config::Transport transport = announce_devices(world, experiment.run);
  std::vector<std::unique_ptr<exec::DeviceCommunicator>> messages;
  MemoryLedger ledger;
  AttendTensors<Real> rows(world, problem, experiment.run.dtype, plans, ledger);
  collectively(world, [&] {
    rows.load(*input, "q", Tensor::q);
    rows.load(*input, "k", Tensor::k);
    rows.load(*input, "v", Tensor::v);
    if (problem.backward) rows.load(*input, "dout", Tensor::dout);
  });

  const auto rotary = rotary_table<Accumulator<Real>>(experiment, problem, ledger);
  rows.rotate_keys(rotary);
  trace::Recorder recorder(0);
  exec::Tracer tracer(recorder, ledger, false, false);
  const comm::ActivityScope activity(world, [&] { return tracer.activity(); });
  Exchanges<Real> exchanges;
  for (const program::TickPlans& part : plans) {
    const auto make = [&]() -> exec::DeviceCommunicator& {
      return *messages.emplace_back(
          exec::make_device_communicator(world, transport, exec::Purpose::attention));
    };
    auto& inputs = make();
    auto& results = make();
    exchanges.push_back(std::make_unique<exec::AttentionExchange<Real>>(
        exec::AttentionCommunicators{inputs, results}, step_shape->layout.members(0), problem.shape,
        experiment.attention.kernel, rotary, part.half, tracer, ledger));
    exchanges.back()->bind({&part}, 1, 1, false);
    if (given) exchanges.back()->index().set_patterns(&*given);
  }
  const auto program = program::make_program(*step_shape, world.rank(), plans);
  run_program(exchanges, program, Pass::forward, rows.buffers());
  if (problem.backward) run_program(exchanges, program, Pass::backward, rows.buffers());
  for (const auto& exchange : exchanges) exchange->finish();
  for (const auto& exchange : exchanges) exchange->require_all_computed();
  tracer.finish_step();
  if (problem.backward) rows.turn_back_keys(rotary);

  std::vector<SparsePattern> owned;
  if (sparse) owned = exchanges.front()->index().owned(0);
  write_results(world, rows, problem, plans.front().forward.workload, owned, line);
}

}  // namespace

void attend(comm::Communicator& world, const CommandLine& line) {
  const config::Experiment experiment =
      load_experiment(world, line.experiment, line.overrides, config::HeadsOf::input);
  with_real(experiment.run.dtype,
            [&]<typename Real>(Real) { attend_as<Real>(world, experiment, line); });
}

}  // namespace cadenza::app
