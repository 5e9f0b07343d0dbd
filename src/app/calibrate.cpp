// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/calibrate.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "cadenza/app/agree.hpp"
#include "cadenza/app/commands.hpp"
#include "cadenza/app/dtype.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/app/machine.hpp"
#include "cadenza/model/llama.hpp"
#include "calibration.hpp"

namespace cadenza::app {
namespace {

constexpr int kRounds = 2;
constexpr std::int64_t kMostRows = 16384;
constexpr std::int64_t kShortest = 4096;  // tokens of the longest document, at least

/// Opens the file for what follows, before minutes are spent on it.
std::ofstream open_output(const std::string& path, std::ios::openmode mode) {
  errno = 0;
  std::ofstream file(path, mode);
  if (file) return file;
  fail(ExitCode::data,
       "{}: cannot be written: {}; valid: --output with a file in a folder that is "
       "there",
       path, std::strerror(errno));
}

void write_machine(const std::string& path, const config::Machine& machine) {
  std::ofstream file = open_output(path, std::ios::trunc);
  if (!(file << "# SPDX-License-Identifier: Apache-2.0\n" << to_yaml(machine) << std::flush)) {
    fail(ExitCode::data, "{}: cannot be written: {}", path, std::strerror(errno));
  }
}

}  // namespace

template <typename Real>
Calibration<Real>::Calibration(comm::Communicator& world, const config::Experiment& experiment)
    : world_(world),
      experiment_(experiment),
      longest_(std::max(experiment.data.max_document, kShortest)),
      rows_(std::min(experiment.batch.microbatch, kMostRows)),
      attention_(world, experiment.model, longest_, ledger_) {
  const kernels::AttentionShape shape = model::attention_shape(experiment.model);
  machine_.name = comm::host_place(world).host;
  machine_.dtype = experiment.run.dtype;
  machine_.attention.heads = shape.heads;
  machine_.attention.kv_heads = shape.kv_heads;
  machine_.attention.head_dim = shape.head_dim;
}

template <typename Real>
config::Machine Calibration<Real>::run() {
  double peak = matmul_rate<Real>(world_);
  world_.all_reduce(std::span(&peak, 1), comm::Reduction::min);
  machine_.peak_flops_per_second = rounded(peak);
  for (int round = 1; round <= kRounds; ++round) {
    say(fmt::format("round {} of {}: attention", round, kRounds));
    measure_attention();
    say(fmt::format("round {} of {}: products, operations, messages", round, kRounds));
    measure_products();
    measure_operations();
    if (world_.size() > 1) measure_messages();
  }
  fit_attention();
  fit_products();
  fit_operations();
  if (world_.size() > 1) fit_messages();
  check_attention();
  check_operations();
  machine_.source = source();
  return machine_;
}

template <typename Real>
void Calibration<Real>::say(const std::string& text) const {
  if (world_.rank() == 0) spdlog::info("{}", text);
}

template <typename Real>
std::string Calibration<Real>::source() const {
  return fmt::format(
      "cadenza calibrate, {} ranks x {} threads on {}, {}; predictions beside other measurements: "
      "attention {}; products {}; operations {}{}",
      world_.size(), Device().concurrency(), machine_.name, utc_now(), attention_error_.text(),
      product_error_.text(), operation_error_.text(),
      world_.size() > 1 ? "" : "; copies and links not measured, which takes two ranks");
}

template <typename Real>
config::Machine measure_machine(comm::Communicator& world, const config::Experiment& experiment) {
  announce_kernels<Real>(world, model::attention_shape(experiment.model));
  return Calibration<Real>(world, experiment).run();
}

void calibrate(comm::Communicator& world, const CommandLine& line) {
  config::Experiment experiment;
  const std::string host = comm::host_place(world).host;
  together(world, [&] {
    experiment = load_experiment(line.experiment, line.overrides);
    require_dtype(experiment.run.dtype, kernels::supports_bfloat16(), host);
    if (world.rank() == 0) open_output(line.output, std::ios::app);
  });
  world.set_timeout(experiment.run.timeout);
  with_real(experiment.run.dtype, [&]<typename Real>(Real) {
    const config::Machine machine = measure_machine<Real>(world, experiment);
    together(world, [&] {
      if (world.rank() == 0) write_machine(line.output, machine);
    });
    if (world.rank() == 0) {
      spdlog::info("{}", machine.source);
      spdlog::info("next      cadenza simulate {} --set cluster.machine={}", line.experiment,
                   line.output);
    }
  });
}

template class Calibration<bfloat16>;
template class Calibration<float>;
template class Calibration<double>;
template config::Machine measure_machine<bfloat16>(comm::Communicator&, const config::Experiment&);
template config::Machine measure_machine<float>(comm::Communicator&, const config::Experiment&);
template config::Machine measure_machine<double>(comm::Communicator&, const config::Experiment&);

}  // namespace cadenza::app
