// SPDX-License-Identifier: Apache-2.0
// Checkpoints: HDF5, one dataset per parameter under Hugging Face's Llama names and shapes, AdamW's
// moments beside them. Independent of the layout that wrote them, readable in any other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadenza/model/parameters.hpp"

namespace cadenza::storage {
class File;
}

namespace cadenza::model {

/// Writes `path` whole or not at all: datasets <name> ([out, in] or [width]),
/// optimizer/first_moment/<name>, optimizer/second_moment/<name>; attributes schema, step (updates
/// done so far). Numbers are Accumulator<Real>: nothing of a run in bfloat16 is lost. Until
/// finish() the file is called <path>.partial; without it nothing stays, but for that file where
/// the process is killed.
class CheckpointWriter {
 public:
  /// @throws Error(data), as all members
  CheckpointWriter(const std::string& path, std::int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// A whole parameter or moment, on the host; float or double.
  template <typename Sum>
  void write(const std::string& name, const std::vector<std::int64_t>& shape, const Sum* values);
  void finish();

 private:
  std::string path_;
  std::string partial_;
  std::unique_ptr<storage::File> file_;
};

/// Reads what CheckpointWriter wrote, converted to the reader's type where it is another.
class CheckpointReader {
 public:
  /// @throws Error(data), as all members: no such file, cut short, or no checkpoint
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::string& path() const;
  /// Updates done so far: the step that comes next.
  std::int64_t step() const { return step_; }
  /// @throws Error(data) unless the file holds every parameter of the model and both its moments,
  /// in their shapes, and no other parameter
  void require(const config::Model& model) const;
  /// This rank's blocks of all parameters, the moments of what it owns, the working copy. Reads
  /// nothing else, so that all ranks may read at once.
  template <typename Real>
  void read(Parameters<Real>& parameters) const;

 private:
  void require_shape(const std::string& dataset, const ParameterInfo& info) const;
  template <typename Sum>
  void read_elements(const std::string& prefix, const ParameterTable& table, Range elements,
                     Sum* values) const;

  std::unique_ptr<storage::File> file_;
  std::int64_t step_ = 0;
};

inline constexpr const char* kCheckpointSchema = "cadenza-checkpoint/1";
inline constexpr const char* kFirstMomentPrefix = "optimizer/first_moment/";
inline constexpr const char* kSecondMomentPrefix = "optimizer/second_moment/";

std::string checkpoint_name(std::int64_t step);  ///< "step-00000010.h5"

/// Paths of the files in `folder` that are named as checkpoints are, the newest first.
/// @throws Error(data)
std::vector<std::string> checkpoints_in(const std::string& folder);

/// Shape of a parameter's dataset: [out, in] of a matrix, [width] of a vector.
std::vector<std::int64_t> whole_shape(const ParameterInfo& info);

}  // namespace cadenza::model
