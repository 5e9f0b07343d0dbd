// SPDX-License-Identifier: Apache-2.0
// Checkpoints to test with, written by one rank that has everything.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/model/checkpoint.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model::test {

/// Parameters whose values and moments all differ.
template <typename Real>
Parameters<Real> distinct_parameters(const config::Model& model) {
  MemoryLedger ledger;
  std::mt19937_64 random(1);
  Parameters<Real> parameters = whole_parameters<Real>(model, 1, ledger);
  for (const auto& array :
       std::array{test::masters(parameters), parameters.first_moment, parameters.second_moment}) {
    auto values = normal(parameters.table.elements, random);
    if (array.data() == parameters.second_moment.data()) {
      for (auto& value : values) value = std::abs(value);
    }
    write_rows(values, array.data());
  }
  return parameters;
}

inline config::Experiment experiment_of(const config::Model& model) {
  config::Experiment experiment;
  experiment.model = model;
  return experiment;
}

/// Calls write(name, shape, values) for every parameter and moment of a rank that has them all.
template <typename Real, typename Write>
void for_each_dataset(const Parameters<Real>& parameters, Write write) {
  for (const auto& [prefix, array] :
       std::array{std::pair(std::string(), test::masters(parameters)),
                  std::pair(std::string(kFirstMomentPrefix), parameters.first_moment),
                  std::pair(std::string(kSecondMomentPrefix), parameters.second_moment)}) {
    const auto values = testing::download(array);
    for (const ParameterInfo& info : parameters.table.entries) {
      write(prefix + info.name, whole_shape(info), values.data() + info.offset);
    }
  }
}

template <typename Real>
void save(const std::string& path, const config::Model& model, const Parameters<Real>& parameters,
          std::int64_t step) {
  CheckpointWriter writer(path, step, experiment_of(model));
  for_each_dataset(parameters, [&](const auto& name, const auto& shape, const auto* values) {
    writer.write(name, shape, values);
  });
  writer.finish();
}

}  // namespace cadenza::model::test
