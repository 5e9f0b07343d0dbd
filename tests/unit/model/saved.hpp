// SPDX-License-Identifier: Apache-2.0
// Checkpoints to test with, written by one rank that has everything.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/model/checkpoint.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model::test {

/// Parameters whose values and moments all differ.
template <typename Real>
Parameters<Real> distinct_parameters(const config::Model& model) {
  MemoryLedger ledger;
  std::mt19937_64 random(1);
  Parameters<Real> parameters = whole_parameters<Real>(model, 1, ledger);
  for (const auto& array : {parameters.values, parameters.first_moment, parameters.second_moment}) {
    write_rows(normal(parameters.table.elements, random), array.data());
  }
  return parameters;
}

/// Every parameter and moment of a rank that has them all.
template <typename Real>
void save(const std::string& path, const Parameters<Real>& parameters, std::int64_t step) {
  CheckpointWriter writer(path, step);
  for (const auto& [prefix, array] :
       {std::pair(std::string(), parameters.values),
        std::pair(std::string(kFirstMomentPrefix), parameters.first_moment),
        std::pair(std::string(kSecondMomentPrefix), parameters.second_moment)}) {
    const auto values = testing::download(array);
    for (const ParameterInfo& info : parameters.table.entries) {
      std::vector<std::int64_t> shape = {info.rows};
      if (info.is_matrix()) shape.push_back(info.columns);
      writer.write(prefix + info.name, shape, values.data() + info.offset);
    }
  }
  writer.finish();
}

}  // namespace cadenza::model::test
