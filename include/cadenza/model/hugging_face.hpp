// SPDX-License-Identifier: Apache-2.0
// A model in a folder of Hugging Face's transformers: config.json and safetensors. Parameters have
// there the names and the shapes [out, in] that they have here, and heads are rotated in the same
// way (first half of a head with its second half).
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/parameters.hpp"
#include "cadenza/storage/safetensors.hpp"

namespace cadenza::model {

inline constexpr std::string_view kModelConfig = "config.json";

class HuggingFaceFolder {
 public:
  /// Reads config.json and the headers of the tensors. @throws Error(data), as all members do
  explicit HuggingFaceFolder(const std::string& path);

  const std::string& path() const { return tensors_.path(); }
  /// The model and the attention of config.json, with defaults in all else.
  const config::Experiment& described() const { return described_; }
  /// The type of a run that loses nothing of the tensors: bfloat16 where all are, float64 where one
  /// is, else float32.
  config::Dtype dtype() const;
  /// Requires this model: the settings of config.json and exactly the model's parameters in their
  /// shapes; but a tied head may be there, equal to the embedding, and the frequencies of rotation
  /// that old versions saved. @throws OtherModel where config.json has other settings
  void require(const config::Model& model) const;
  /// The experiment's settings of attention, and of the scaling of rotation, that differ from those
  /// of config.json.
  std::vector<Difference> differences(const config::Experiment& experiment) const;
  /// Reads this rank's blocks of all parameters; moments become zeros.
  template <typename Real>
  void read(Parameters<Real>& parameters) const;
  /// Reads a whole parameter, in its whole_shape().
  template <typename Sum>
  std::vector<Sum> read_whole(const ParameterInfo& info) const;
  /// Reads everything.
  void verify(const config::Model& model) const;

 private:
  void require_equal_head(const ParameterTable& table) const;

  storage::SafetensorsFolder tensors_;
  config::Experiment described_;
};

}  // namespace cadenza::model
