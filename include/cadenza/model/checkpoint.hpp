// SPDX-License-Identifier: Apache-2.0
// Checkpoints: HDF5, one dataset per parameter under Hugging Face's Llama names and shapes, AdamW's
// moments beside them. Independent of the layout that wrote them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cadenza::storage {
class File;
}

namespace cadenza::model {

/// Writes `path` whole or not at all: datasets <name> ([out, in] or [width]),
/// optimizer/first_moment/<name>, optimizer/second_moment/<name>; attributes schema, step (updates
/// done so far). Numbers are Accumulator<Real>: nothing of a run in bfloat16 is lost. Until
/// finish() the file is called <path>.partial; without it nothing stays.
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

inline constexpr const char* kFirstMomentPrefix = "optimizer/first_moment/";
inline constexpr const char* kSecondMomentPrefix = "optimizer/second_moment/";

std::string checkpoint_name(std::int64_t step);  ///< "step-00000010.h5"

}  // namespace cadenza::model
