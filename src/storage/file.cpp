// SPDX-License-Identifier: Apache-2.0
// Writing of HDF5 files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cadenza/storage/hdf5.hpp"

namespace cadenza::storage {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;  // default size of a dataset's chunk cache

Handle make_space(const Shape& shape, const std::string& path, const std::string& what) {
  const hid_t id = shape.empty()
                       ? H5Screate(H5S_SCALAR)
                       : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  return {checked(id, path, what), H5Sclose};
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

/// Extents of chunks of about 1 MiB. They are nearly square, so that reads of some rows or some
/// columns touch few chunks, and divide the shape evenly, so that chunks at the edges are full.
Shape chunk_of(const Shape& shape, std::size_t element_bytes) {
  double elements = static_cast<double>(kChunkBytes / element_bytes);
  Shape chunk(shape);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const double edge = std::floor(std::pow(elements, 1.0 / static_cast<double>(axis + 1)));
    const auto longest = static_cast<hsize_t>(std::max(edge, 1.0));
    const hsize_t chunks = (shape[axis] + longest - 1) / longest;
    chunk[axis] = (shape[axis] + chunks - 1) / chunks;
    elements /= static_cast<double>(chunk[axis]);
  }
  return chunk;
}

/// The creation properties of a dataset.
Handle dataset_creation(Protection protection, const Shape& shape, std::size_t element_bytes) {
  Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const bool empty = std::ranges::find(shape, hsize_t{0}) != shape.end();
  if (protection == Protection::none || empty) return creation;
  if (shape.empty()) {  // stored in the header, which has a checksum
    H5Pset_layout(creation.get(), H5D_COMPACT);
    return creation;
  }
  const Shape chunk = chunk_of(shape, element_bytes);
  H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
  H5Pset_fletcher32(creation.get());
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  return creation;
}

}  // namespace

File File::create(const std::string& path, Protection protection) {
  initialise();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (protection == Protection::checksums) {
    H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  }
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  return {path, Handle(checked(id, path, "cannot create the file"), H5Fclose), protection};
}

void File::write_values(const std::string& dataset, const Shape& shape, hid_t type,
                        const void* values) {
  const std::string what = fmt::format("cannot write dataset {}", dataset);
  const Handle space = make_space(shape, path_, what);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  const Handle creation = dataset_creation(protection_, shape, H5Tget_size(type));
  Handle target(checked(H5Dcreate2(id(), dataset.c_str(), type, space.get(), links.get(),
                                   creation.get(), H5P_DEFAULT),
                        path_, what),
                H5Dclose);
  if (H5Dwrite(target.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) {
    refuse(path_, what);
  }
  // HDF5 holds small datasets back until they are closed, so only closing reports a full disk.
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
  const Handle type = text_type(value.size());
  write_scalar_attribute(id(), path_, name, type.get(), value.c_str());
}

void File::write_attribute(const std::string& name, std::int64_t value) {
  write_scalar_attribute(id(), path_, name, native_type<std::int64_t>(), &value);
}

void File::write_attribute(const std::string& name, double value) {
  write_scalar_attribute(id(), path_, name, native_type<double>(), &value);
}

void File::close() {
  if (!file_) return;
  if (H5Fclose(file_.release()) < 0) refuse(path_, "cannot complete the file");
}

template void File::write<float>(const std::string&, const Shape&, const float*);
template void File::write<double>(const std::string&, const Shape&, const double*);
template void File::write<std::int32_t>(const std::string&, const Shape&, const std::int32_t*);
template void File::write<std::int64_t>(const std::string&, const Shape&, const std::int64_t*);
template void File::write<std::uint64_t>(const std::string&, const Shape&, const std::uint64_t*);

}  // namespace cadenza::storage
