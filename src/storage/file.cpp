// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::storage {
namespace {

/// Every failure ends here, directly after the call that failed.
[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  fail(ExitCode::data, "{}: {}: {}", path, what, last_failure());
}

hid_t checked(hid_t id, const std::string& path, const std::string& what) {
  if (id < 0) refuse(path, what);
  return id;
}

Handle make_space(const Shape& shape, const std::string& path, const std::string& what) {
  const hid_t id = shape.empty()
                       ? H5Screate(H5S_SCALAR)
                       : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  return {checked(id, path, what), H5Sclose};
}

/// Texts of `bytes` bytes, shorter ones padded with zeros.
Handle text_type(std::size_t bytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), bytes);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

Handle open_dataset(hid_t file, const std::string& path, const std::string& dataset) {
  const std::string what = fmt::format("cannot open dataset {}", dataset);
  return {checked(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), path, what), H5Dclose};
}

Shape shape_of(const Handle& dataset, const std::string& path, const std::string& name) {
  const std::string what = fmt::format("cannot read the shape of dataset {}", name);
  const Handle space(checked(H5Dget_space(dataset.get()), path, what), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0) refuse(path, what);
  Shape shape(static_cast<std::size_t>(rank));
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr);
  return shape;
}

void write_scalar_attribute(hid_t file, const std::string& path, const std::string& name,
                            hid_t type, const void* value) {
  const std::string what = fmt::format("cannot write attribute {}", name);
  const Handle space = make_space({}, path, what);
  const Handle attribute(
      checked(H5Acreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), path,
              what),
      H5Aclose);
  if (H5Awrite(attribute.get(), type, value) < 0) refuse(path, what);
}

/// H5Lvisit callback: collects the paths of datasets.
herr_t add_dataset(hid_t file, const char* path, const H5L_info_t* /*link*/, void* paths) {
  const Handle object(H5Oopen(file, path, H5P_DEFAULT), H5Oclose);
  if (!object) return -1;
  if (H5Iget_type(object.get()) == H5I_DATASET) {
    static_cast<std::vector<std::string>*>(paths)->emplace_back(path);
  }
  return 0;
}

}  // namespace

template <>
hid_t native_type<float>() {
  initialise();
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t native_type<double>() {
  initialise();
  return H5T_NATIVE_DOUBLE;
}
template <>
hid_t native_type<std::int32_t>() {
  initialise();
  return H5T_NATIVE_INT32;
}
template <>
hid_t native_type<std::int64_t>() {
  initialise();
  return H5T_NATIVE_INT64;
}
template <>
hid_t native_type<std::uint64_t>() {
  initialise();
  return H5T_NATIVE_UINT64;
}

File File::create(const std::string& path) {
  initialise();
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  return {path, Handle(checked(id, path, "cannot create the file"), H5Fclose)};
}

File File::open(const std::string& path) {
  initialise();
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  return {path, Handle(checked(id, path, "cannot open as an HDF5 file"), H5Fclose)};
}

void File::write_values(const std::string& dataset, const Shape& shape, hid_t type,
                        const void* values) {
  const std::string what = fmt::format("cannot write dataset {}", dataset);
  const Handle space = make_space(shape, path_, what);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  Handle target(checked(H5Dcreate2(id(), dataset.c_str(), type, space.get(), links.get(),
                                   H5P_DEFAULT, H5P_DEFAULT),
                        path_, what),
                H5Dclose);
  if (H5Dwrite(target.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) {
    refuse(path_, what);
  }
  // HDF5 holds small datasets back until they are closed: only then is a full disk noticed.
  if (H5Dclose(target.release()) < 0) refuse(path_, what);
}

template <typename T>
void File::write(const std::string& dataset, const Shape& shape, const T* values) {
  write_values(dataset, shape, native_type<T>(), values);
}

void File::write_texts(const std::string& dataset, std::span<const std::string> texts) {
  std::size_t longest = 1;
  for (const std::string& text : texts) longest = std::max(longest, text.size());
  std::string padded;
  for (const std::string& text : texts) padded += text + std::string(longest - text.size(), '\0');
  write_values(dataset, {texts.size()}, text_type(longest).get(), padded.data());
}

void File::write_attribute(const std::string& name, const std::string& value) {
  const Handle type = text_type(std::max<std::size_t>(value.size(), 1));
  write_scalar_attribute(id(), path_, name, type.get(), value.c_str());
}

void File::write_attribute(const std::string& name, std::int64_t value) {
  write_scalar_attribute(id(), path_, name, native_type<std::int64_t>(), &value);
}

void File::write_attribute(const std::string& name, double value) {
  write_scalar_attribute(id(), path_, name, native_type<double>(), &value);
}

bool File::contains(const std::string& dataset) const {
  // H5Lexists fails, rather than says no, when a group on the way is missing: ask for each of them.
  for (auto end = dataset.find('/', 1);; end = dataset.find('/', end + 1)) {
    if (H5Lexists(id(), dataset.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
    if (end == std::string::npos) return true;
  }
}

Shape File::shape(const std::string& dataset) const {
  return shape_of(open_dataset(id(), path_, dataset), path_, dataset);
}

template <typename T>
std::vector<T> File::read(const std::string& dataset, const Shape& expected) const {
  const Handle source = open_dataset(id(), path_, dataset);
  const Shape found = shape_of(source, path_, dataset);
  if (found != expected) {
    fail(ExitCode::data, "{}: dataset {} has shape [{}], expected [{}]", path_, dataset,
         fmt::join(found, ", "), fmt::join(expected, ", "));
  }
  std::vector<T> values(
      std::accumulate(found.begin(), found.end(), std::size_t{1}, std::multiplies<>()));
  if (H5Dread(source.get(), native_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    refuse(path_, fmt::format("cannot read dataset {}", dataset));
  }
  return values;
}

template <typename T>
std::vector<T> File::read_part(const std::string& dataset, const Shape& begin,
                               const Shape& count) const {
  const Handle source = open_dataset(id(), path_, dataset);
  const std::string what = fmt::format("cannot read dataset {} from [{}], [{}] elements", dataset,
                                       fmt::join(begin, ", "), fmt::join(count, ", "));
  const Handle space(checked(H5Dget_space(source.get()), path_, what), H5Sclose);
  const Handle memory = make_space(count, path_, what);
  std::vector<T> values(
      std::accumulate(count.begin(), count.end(), std::size_t{1}, std::multiplies<>()));
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(),
                          nullptr) < 0 ||
      H5Dread(source.get(), native_type<T>(), memory.get(), space.get(), H5P_DEFAULT,
              values.data()) < 0) {
    refuse(path_, what);
  }
  return values;
}

std::int64_t File::read_attribute(const std::string& name) const {
  const std::string what = fmt::format("cannot read attribute {}", name);
  const Handle attribute(checked(H5Aopen(id(), name.c_str(), H5P_DEFAULT), path_, what), H5Aclose);
  const Handle space(checked(H5Aget_space(attribute.get()), path_, what), H5Sclose);
  if (H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail(ExitCode::data, "{}: attribute {} has {} values, expected 1", path_, name,
         H5Sget_simple_extent_npoints(space.get()));
  }
  std::int64_t value = 0;
  if (H5Aread(attribute.get(), native_type<std::int64_t>(), &value) < 0) refuse(path_, what);
  return value;
}

std::string File::read_text_attribute(const std::string& name) const {
  if (H5Aexists(id(), name.c_str()) <= 0) return "";
  const std::string what = fmt::format("cannot read attribute {}", name);
  const Handle attribute(checked(H5Aopen(id(), name.c_str(), H5P_DEFAULT), path_, what), H5Aclose);
  const Handle type(checked(H5Aget_type(attribute.get()), path_, what), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING) return "";
  if (H5Tis_variable_str(type.get()) > 0) {  // as h5py writes it
    char* text = nullptr;
    if (H5Aread(attribute.get(), type.get(), static_cast<void*>(&text)) < 0) refuse(path_, what);
    std::string copy = text != nullptr ? text : "";
    H5free_memory(text);
    return copy;
  }
  std::string text(H5Tget_size(type.get()), '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0) refuse(path_, what);
  return text.c_str();  // without the padding
}

std::vector<std::string> File::datasets() const {
  std::vector<std::string> paths;
  if (H5Lvisit(id(), H5_INDEX_NAME, H5_ITER_INC, add_dataset, &paths) < 0) {
    refuse(path_, "cannot list the datasets");
  }
  std::ranges::sort(paths);
  return paths;
}

void File::close() {
  if (!file_) return;
  if (H5Fclose(file_.release()) < 0) refuse(path_, "cannot complete the file");
}

#define CADENZA_INSTANTIATE(T)                                                   \
  template void File::write<T>(const std::string&, const Shape&, const T*);      \
  template std::vector<T> File::read<T>(const std::string&, const Shape&) const; \
  template std::vector<T> File::read_part<T>(const std::string&, const Shape&, const Shape&) const;
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(std::int32_t)
CADENZA_INSTANTIATE(std::int64_t)
CADENZA_INSTANTIATE(std::uint64_t)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::storage
