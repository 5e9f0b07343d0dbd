// SPDX-License-Identifier: Apache-2.0
// A reader of its own: names, offsets and columns through the HDF5 C API, nothing of src/trace.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cadenza/storage/hdf5.hpp"

namespace cadenza::trace {

enum class Access { plain, beside_writer, either };

/// Opens as docs/trace.md says: plainly, else as a reader beside a writer.
inline storage::Handle open_trace(const std::string& path, Access access = Access::either) {
  storage::initialise();
  hid_t id = H5I_INVALID_HID;
  if (access != Access::beside_writer) id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (id < 0 && access != Access::plain) {
    const storage::Handle latest(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_libver_bounds(latest.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    id = H5Fopen(path.c_str(), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, latest.get());
  }
  return {id, H5Fclose};
}

inline std::size_t row_count(hid_t file, const std::string& dataset) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle space(H5Dget_space(data.get()), H5Sclose);
  return static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
}

template <typename T>
hid_t memory_type() {
  if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
  if constexpr (std::is_same_v<T, std::int64_t>) return H5T_NATIVE_INT64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return H5T_NATIVE_UINT64;
}

/// One field of every row, converted to T. @param width  values per row (array fields)
template <typename T>
std::vector<T> column(hid_t file, const std::string& dataset, const char* field,
                      hsize_t width = 1) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle array(H5Tarray_create2(memory_type<T>(), 1, &width), H5Tclose);
  const storage::Handle type(H5Tcreate(H5T_COMPOUND, width * sizeof(T)), H5Tclose);
  H5Tinsert(type.get(), field, 0, width == 1 ? memory_type<T>() : array.get());
  std::vector<T> values(row_count(file, dataset) * width);
  EXPECT_GE(H5Dread(data.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0)
      << dataset << "." << field;
  return values;
}

/// Fixed-length strings of a dataset, or of one of its fields.
inline std::vector<std::string> text_column(hid_t file, const std::string& dataset,
                                            std::size_t length, const char* field = nullptr) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle text(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(text.get(), length);
  H5Tset_strpad(text.get(), H5T_STR_NULLPAD);
  H5Tset_cset(text.get(), H5T_CSET_UTF8);
  const storage::Handle row(H5Tcreate(H5T_COMPOUND, length), H5Tclose);
  if (field != nullptr) H5Tinsert(row.get(), field, 0, text.get());
  const std::size_t count = row_count(file, dataset);
  std::string buffer(count * length, '\0');
  EXPECT_GE(H5Dread(data.get(), field != nullptr ? row.get() : text.get(), H5S_ALL, H5S_ALL,
                    H5P_DEFAULT, buffer.data()),
            0)
      << dataset;
  std::vector<std::string> values;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string cell = buffer.substr(i * length, length);
    values.push_back(cell.substr(0, cell.find('\0')));
  }
  return values;
}

inline std::string text_attribute(hid_t file, const char* name) {
  const storage::Handle attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
  const storage::Handle type(H5Aget_type(attribute.get()), H5Tclose);
  std::string text(H5Tget_size(type.get()), '\0');
  EXPECT_GE(H5Aread(attribute.get(), type.get(), text.data()), 0) << name;
  return text;
}

using Numbers = std::map<std::string, int>;

/// Names of the numbers of a field.
inline Numbers enumeration_of(hid_t file, const std::string& dataset, const char* field) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle row(H5Dget_type(data.get()), H5Tclose);
  const int member = H5Tget_member_index(row.get(), field);
  const storage::Handle type(H5Tget_member_type(row.get(), static_cast<unsigned>(member)),
                             H5Tclose);
  Numbers numbers;
  for (int i = 0; i < H5Tget_nmembers(type.get()); ++i) {
    std::int32_t value = 0;  // little endian, of one byte or of four
    H5Tget_member_value(type.get(), static_cast<unsigned>(i), &value);
    char* name = H5Tget_member_name(type.get(), static_cast<unsigned>(i));
    numbers[name] = value;
    H5free_memory(name);
  }
  return numbers;
}

/// An attribute of a dataset that is a list of texts of fixed length.
inline std::vector<std::string> texts_of(hid_t file, const std::string& dataset, const char* name) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle attribute(H5Aopen(data.get(), name, H5P_DEFAULT), H5Aclose);
  const storage::Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const std::size_t length = H5Tget_size(type.get());
  std::string cells(H5Aget_storage_size(attribute.get()), '\0');
  EXPECT_GE(H5Aread(attribute.get(), type.get(), cells.data()), 0) << name;
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < cells.size(); at += length) {
    texts.emplace_back(cells.substr(at, length).c_str());
  }
  return texts;
}

inline std::int64_t integer_attribute(hid_t file, const char* name) {
  const storage::Handle attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
  std::int64_t value = 0;
  EXPECT_GE(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value), 0) << name;
  return value;
}

}  // namespace cadenza::trace
