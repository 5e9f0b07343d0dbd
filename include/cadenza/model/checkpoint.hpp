// SPDX-License-Identifier: Apache-2.0
// Checkpoints: HDF5, one dataset per parameter under Hugging Face's Llama names and shapes, with
// AdamW's moments beside them. They do not depend on the layout that wrote them and can be read in
// any other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/base/sparse_density.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::storage {
class File;
class NewFile;
}  // namespace cadenza::storage

namespace cadenza::model {

/// Writes `path` completely or not at all: datasets <name> ([out, in] or [width]),
/// optimizer/first_moment/<name>, optimizer/second_moment/<name> (parameters that nothing trained,
/// at step 0, may have no moments: they are zeros); with sparse attention
/// sparse_estimate/places ([rows, 3]: 0 for SparseEstimates::next or 1 for `after`, layer, binary
/// digits of the lengths) and sparse_estimate/shares ([rows, 32]); attributes schema, step (updates
/// done so far), experiment (its complete YAML) and contents (of its files: "KEY: TEXT" lines).
/// Everything has checksums. Numbers are Accumulator<Real>, so a run in bfloat16 loses nothing.
/// Until finish() the file is <path>.partial; without finish() it is removed, unless the process is
/// killed.
class CheckpointWriter {
 public:
  /// @throws Error(data), as all members do
  CheckpointWriter(const std::string& path, std::int64_t step, const config::Experiment& experiment,
                   const config::FileContents& contents = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// Writes a whole parameter or moment from host memory; float or double. @throws Error(numerics)
  /// also if a value is not finite or a second moment is negative: no reader would accept it
  template <typename Sum>
  void write(const std::string& name, const std::vector<std::int64_t>& shape, const Sum* values);
  /// Writes the estimates, or nothing if both are empty.
  void write(const SparseEstimates& estimates);
  void finish();

 private:
  std::unique_ptr<storage::NewFile> output_;
};

/// Thrown if a checkpoint is sound but belongs to another model than the experiment's.
class OtherModel : public Error {
 public:
  explicit OtherModel(const std::string& message) : Error(ExitCode::data, message) {}
};

/// A setting whose values differ between checkpoint and experiment; an empty one is absent.
struct Difference {
  std::string key, stored, asked;
};

/// Reads what CheckpointWriter wrote and converts it to the reader's type.
class CheckpointReader {
 public:
  /// @throws Error(data), as all members do: no such file, damaged, no checkpoint, or a step that
  /// differs from the one in the file's name
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::string& path() const;
  /// Number of updates done so far: the number of the next step.
  std::int64_t step() const { return step_; }
  /// Whether it has AdamW's moments; without them, which only step 0 may be, they are zeros.
  bool has_moments() const { return has_moments_; }
  /// The complete YAML of the experiment that wrote it.
  const std::string& experiment() const { return experiment_; }
  /// Requires a checkpoint of this model. @throws OtherModel if the file was written with other
  /// settings of the model; Error(data) unless it holds exactly the model's parameters and both
  /// moments of each, in their shapes
  void require(const config::Model& model) const;
  /// Returns the differing settings other than the model's: of seed, data, batch, optimizer and
  /// number of steps; also the files whose contents differ although the settings that name and read
  /// them do not.
  std::vector<Difference> differences(const config::Experiment& experiment,
                                      const config::FileContents& contents = {}) const;
  /// Reads this rank's blocks of all parameters, the moments of the elements it owns, and sets the
  /// working copy. Reads nothing else, so that all ranks may read at once, and verifies what it
  /// reads.
  template <typename Real>
  void read(Parameters<Real>& parameters) const;
  /// Returns the estimates of sparse attention; both are empty if the file has none.
  SparseEstimates estimates(const config::Model& model) const;
  /// Reads and verifies a whole parameter in its whole_shape().
  template <typename Sum>
  std::vector<Sum> read_whole(const ParameterInfo& info) const;
  /// Reads and verifies everything.
  void verify(const config::Model& model) const;

 private:
  void require_settings(const config::Model& model) const;
  void require_shape(const std::string& dataset, const ParameterInfo& info) const;
  [[noreturn]] void refuse_parameters(const std::string& found) const;
  /// Reads and verifies rows of this rank's block from the whole dataset.
  template <typename Sum>
  std::vector<Sum> read_rows(const std::string& dataset, const ParameterInfo& info,
                             Range rows) const;
  template <typename Sum>
  void read_elements(const std::string& prefix, const ParameterTable& table, Range elements,
                     Sum* values) const;

  std::span<const char* const> prefixes() const;  ///< of the datasets of a parameter

  std::unique_ptr<storage::File> file_;
  std::int64_t step_ = 0;
  bool has_moments_ = true;
  std::string experiment_;
  std::string contents_;  ///< text of the attribute
};

inline constexpr const char* kCheckpointSchema = "cadenza-checkpoint/2";
inline constexpr const char* kOptimizerPrefix = "optimizer/";
inline constexpr const char* kFirstMomentPrefix = "optimizer/first_moment/";
inline constexpr const char* kSecondMomentPrefix = "optimizer/second_moment/";
inline constexpr const char* kEstimatePlaces = "sparse_estimate/places";
inline constexpr const char* kEstimateShares = "sparse_estimate/shares";

std::string checkpoint_name(std::int64_t step);  ///< "step-00000010.h5"
/// Returns the step in a checkpoint's name; -1 for other names.
std::int64_t step_of(const std::string& name);

/// Returns the paths of the files in `folder` with names of checkpoints, newest first.
/// @throws Error(data)
std::vector<std::string> checkpoints_in(const std::string& folder);

/// Removes the partial files that killed writers left in `folder`. Nobody may be writing there.
void remove_partial_checkpoints(const std::string& folder);

/// Returns the index of the first element that no training produces: not finite, or negative in a
/// second moment; -1: none.
template <typename Sum>
std::int64_t first_unsound(const std::string& dataset, std::span<const Sum> values);

/// Shape of a parameter's dataset: [out, in] for a matrix, [width] for a vector.
std::vector<std::int64_t> whole_shape(const ParameterInfo& info);

}  // namespace cadenza::model
