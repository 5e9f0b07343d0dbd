// SPDX-License-Identifier: Apache-2.0
// Reads a rank's block of a parameter from a file that has the whole one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::model {

/// Reads `rows` of this rank's block of `tensor`, and requires numbers that training can produce.
/// @param file  storage::File or storage::SafetensorsFolder
/// @param path  of the file, for messages
/// @throws Error(data)
template <typename Sum, typename File>
std::vector<Sum> read_sound_rows(const File& file, const std::string& path,
                                 const std::string& tensor, const ParameterInfo& info, Range rows) {
  storage::Shape begin{static_cast<hsize_t>(info.row_begin + rows.begin)};
  storage::Shape count{static_cast<hsize_t>(rows.size())};
  if (info.is_matrix()) {
    begin.push_back(static_cast<hsize_t>(info.column_begin));
    count.push_back(static_cast<hsize_t>(info.columns));
  }
  std::vector<Sum> values = file.template read_part<Sum>(tensor, begin, count);
  const std::int64_t unsound = first_unsound(tensor, std::span<const Sum>(values));
  if (unsound >= 0) {
    const std::int64_t width = info.is_matrix() ? info.columns : 1;
    fail(ExitCode::data, "{}: is damaged: {} has {} in row {}; valid: {}", path, tensor,
         values[at(unsound)], info.row_begin + rows.begin + unsound / width,
         tensor.starts_with(kSecondMomentPrefix) ? "finite numbers of at least 0"
                                                 : "finite numbers");
  }
  return values;
}

}  // namespace cadenza::model
