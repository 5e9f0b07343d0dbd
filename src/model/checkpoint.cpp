// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::model {
namespace {

template <typename Sum>
void write_all(storage::File& file, const ParameterTable& table, const Array<Sum>& values,
               const std::string& prefix) {
  auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, values);
  for (const ParameterInfo& info : table.entries) {
    storage::Shape shape{static_cast<hsize_t>(info.rows)};
    if (info.is_matrix()) shape.push_back(static_cast<hsize_t>(info.columns));
    file.write(prefix + info.name, shape, host.data() + info.offset);
  }
}

template <typename Real>
void write_file(const std::string& path, const Parameters<Real>& parameters, std::int64_t step) {
  storage::File file = storage::File::create(path);
  file.write_attribute("schema", std::string("cadenza-checkpoint/1"));
  file.write_attribute("step", step);
  write_all(file, parameters.table, parameters.values, "");
  write_all(file, parameters.table, parameters.first_moment, "optimizer/first_moment/");
  write_all(file, parameters.table, parameters.second_moment, "optimizer/second_moment/");
  file.close();
}

}  // namespace

template <typename Real>
void save_checkpoint(const std::string& path, const Parameters<Real>& parameters,
                     std::int64_t step) {
  const std::string partial = path + ".partial";
  try {
    write_file(partial, parameters, step);
    std::error_code error;
    std::filesystem::rename(partial, path, error);
    if (error) fail(ExitCode::data, "{}: cannot be written: {}", path, error.message());
  } catch (const Error&) {
    std::error_code ignored;  // the first failure counts
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}.h5", step);
}

template void save_checkpoint(const std::string&, const Parameters<float>&, std::int64_t);
template void save_checkpoint(const std::string&, const Parameters<double>&, std::int64_t);
template void save_checkpoint(const std::string&, const Parameters<bfloat16>&, std::int64_t);

}  // namespace cadenza::model
