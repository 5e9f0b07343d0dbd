// SPDX-License-Identifier: Apache-2.0
// Checkpoints: HDF5, one dataset per parameter under Hugging Face's Llama names and shapes, AdamW's
// moments beside them. Independent of the layout that wrote them, readable in any other.
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

/// Writes `path` whole or not at all: datasets <name> ([out, in] or [width]),
/// optimizer/first_moment/<name>, optimizer/second_moment/<name>; with sparse attention
/// sparse_estimate/places ([rows, 3]: 0 for SparseEstimates::next or 1 for `after`, layer, binary
/// digits of the lengths) and sparse_estimate/shares ([rows, 32]); attributes schema, step (updates
/// done so far), experiment (its YAML, complete) and contents (of its files: "KEY: TEXT" lines).
/// Everything has checksums. Numbers are Accumulator<Real>: nothing of a run in bfloat16 is lost.
/// Until finish() the file is called <path>.partial; without it nothing stays, but for that file
/// where the process is killed.
class CheckpointWriter {
 public:
  /// @throws Error(data), as all members
  CheckpointWriter(const std::string& path, std::int64_t step, const config::Experiment& experiment,
                   const config::FileContents& contents = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// A whole parameter or moment, on the host; float or double. @throws Error(numerics) also where
  /// a value is not finite, or a second moment negative: no reader would take it
  template <typename Sum>
  void write(const std::string& name, const std::vector<std::int64_t>& shape, const Sum* values);
  /// Nothing where both are empty.
  void write(const SparseEstimates& estimates);
  void finish();

 private:
  std::unique_ptr<storage::NewFile> output_;
};

/// The checkpoint is sound, but not of the experiment's model.
class OtherModel : public Error {
 public:
  explicit OtherModel(const std::string& message) : Error(ExitCode::data, message) {}
};

/// A setting of which checkpoint and experiment have different values; empty: has none.
struct Difference {
  std::string key, stored, asked;
};

/// Reads what CheckpointWriter wrote, converted to the reader's type where it is another.
class CheckpointReader {
 public:
  /// @throws Error(data), as all members: no such file, damaged, or no checkpoint; a step other
  /// than that of the file's name
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::string& path() const;
  /// Updates done so far: the step that comes next.
  std::int64_t step() const { return step_; }
  /// @throws OtherModel unless the file was written with the model's settings; Error(data) unless
  /// it holds every parameter of the model and both its moments, in their shapes, and no other
  /// parameter
  void require(const config::Model& model) const;
  /// The settings but the model's: of seed, data, batch, optimizer, and the number of steps; and
  /// the files whose contents are others although the settings that name and read them are not.
  std::vector<Difference> differences(const config::Experiment& experiment,
                                      const config::FileContents& contents = {}) const;
  /// This rank's blocks of all parameters, the moments of what it owns, the working copy. Reads
  /// nothing else, so that all ranks may read at once, and verifies what it reads.
  template <typename Real>
  void read(Parameters<Real>& parameters) const;
  /// Of sparse attention; both are empty where the file has none.
  SparseEstimates estimates(const config::Model& model) const;
  /// Reads and verifies everything.
  void verify(const config::Model& model) const;

 private:
  void require_settings(const config::Model& model) const;
  void require_shape(const std::string& dataset, const ParameterInfo& info) const;
  [[noreturn]] void refuse_parameters(const std::string& found) const;
  /// Rows of this rank's block, as a part of the whole dataset, verified.
  template <typename Sum>
  std::vector<Sum> read_rows(const std::string& dataset, const ParameterInfo& info,
                             Range rows) const;
  template <typename Sum>
  void read_elements(const std::string& prefix, const ParameterTable& table, Range elements,
                     Sum* values) const;

  std::unique_ptr<storage::File> file_;
  std::int64_t step_ = 0;
  std::string experiment_;
  std::string contents_;  ///< as the attribute has it
};

inline constexpr const char* kCheckpointSchema = "cadenza-checkpoint/2";
inline constexpr const char* kFirstMomentPrefix = "optimizer/first_moment/";
inline constexpr const char* kSecondMomentPrefix = "optimizer/second_moment/";
inline constexpr const char* kEstimatePlaces = "sparse_estimate/places";
inline constexpr const char* kEstimateShares = "sparse_estimate/shares";

std::string checkpoint_name(std::int64_t step);  ///< "step-00000010.h5"
/// The step in such a name; -1 in others.
std::int64_t step_of(const std::string& name);

/// Paths of the files in `folder` that are named as checkpoints are, the newest first.
/// @throws Error(data)
std::vector<std::string> checkpoints_in(const std::string& folder);

/// Removes from `folder` what writers that were killed have left in it. Nobody may be writing
/// there.
void remove_partial_checkpoints(const std::string& folder);

/// The first element that no training leaves behind: one that is not finite, or negative in a
/// second moment; -1: none.
template <typename Sum>
std::int64_t first_unsound(const std::string& dataset, std::span<const Sum> values);

/// Shape of a parameter's dataset: [out, in] of a matrix, [width] of a vector.
std::vector<std::int64_t> whole_shape(const ParameterInfo& info);

}  // namespace cadenza::model
