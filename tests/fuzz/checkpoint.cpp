// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a small model, as --from reads it. What is accepted is finite.
#include "cadenza/model/checkpoint.hpp"

#include <algorithm>
#include <cmath>

#include "mutate_hdf5.hpp"
#include "readers.hpp"

namespace cadenza::fuzz {
namespace {

config::Model small_model() {
  return {.layers = 1, .d_model = 4, .heads = 2, .kv_heads = 1, .ffn = 3, .vocab = 5, .rope = {}};
}

config::Experiment small_experiment() {
  config::Experiment experiment;
  experiment.model = small_model();
  return experiment;
}

model::Parameters<float> small_parameters() {
  static MemoryLedger ledger;
  const config::Model model = small_model();
  const model::ModelPart whole = model::whole_model(model);
  return model::make_parameters<float>(
      model, whole, 1, ledger, model::all_elements(model::make_parameter_table(model, whole)));
}

HostArray<float> values_of(const Array<float>& array) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, array);
}

bool all(const Array<float>& array, bool (*holds)(float)) {
  const HostArray<float> values = values_of(array);
  return std::all_of(values.data(), values.data() + values.extent(0), holds);
}

}  // namespace

void read_checkpoint(Bytes input) {
  const InputFile file(input, "step-00000003.h5");
  static const model::Parameters<float> parameters = small_parameters();
  const model::CheckpointReader reader(file.path());
  reader.require(small_model());
  reader.differences(small_experiment());
  reader.verify(small_model());
  model::Parameters<float> read = parameters;
  reader.read(read);
  require(reader.step() == 3, "step {} of a file named after step 3", reader.step());
  for (const Array<float>& array : {read.weights, read.first_moment, read.second_moment}) {
    require(all(array, [](float x) { return std::isfinite(x); }),
            "accepted a number that is not finite");
  }
  const SparseEstimates estimates = reader.estimates(small_model());
  for (const SparseEstimate* estimate : {&estimates.next, &estimates.after}) {
    for (const auto& [place, shares] : estimate->shares()) {
      require(std::ranges::all_of(shares, [](double share) { return share >= 0 && share <= 1; }),
              "accepted a share that is none");
    }
  }
  require(all(read.second_moment, [](float x) { return x >= 0; }),
          "accepted a negative second moment");
}

void write_checkpoint(const std::string& path) {
  const model::Parameters<float> parameters = small_parameters();
  model::CheckpointWriter writer(path, 3, small_experiment());
  for (const char* prefix : {"", model::kFirstMomentPrefix, model::kSecondMomentPrefix}) {
    const HostArray<float> values =
        values_of(*prefix == 0 ? parameters.weights : parameters.first_moment);
    for (const model::ParameterInfo& info : parameters.table.entries) {
      writer.write(prefix + info.name, model::whole_shape(info), values.data() + info.offset);
    }
  }
  SparseCounts counts;
  counts.add(0, SparsePattern::vertical_slash(100, 8, {}, {}), {0, 100});
  SparseEstimates estimates;
  estimates.add(counts);
  estimates.add(counts);
  writer.write(estimates);
  writer.finish();
}

}  // namespace cadenza::fuzz
