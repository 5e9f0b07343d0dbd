// SPDX-License-Identifier: Apache-2.0
#include "trace/schema.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "cadenza/trace/writer.hpp"

namespace cadenza::trace {
namespace {

namespace fs = std::filesystem;
using storage::Handle;

constexpr std::uint64_t kMetadata = 20 * 1024;  // approximate bytes of HDF5's own structures
constexpr std::uint64_t kWorthwhile = 64 * 1024;
constexpr std::size_t kNameSize = 64;  // longer than any name of the schema
constexpr hsize_t kChunk = 1024;       // rows per chunk in the copy
constexpr hsize_t kLargeEnough = 256;  // rows per chunk from which on joining gains little

/// Callback of HDF5 for each attribute of `from`: copies it to `to`.
herr_t copy_attribute(hid_t from, const char* name, const H5A_info_t*, void* to) {
  const Handle source(H5Aopen(from, name, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(source.get()), H5Tclose);
  const Handle space(H5Aget_space(source.get()), H5Sclose);
  std::vector<char> value(H5Aget_storage_size(source.get()));
  if (H5Aread(source.get(), type.get(), value.data()) < 0) return -1;
  const Handle target(H5Acreate2(*static_cast<const hid_t*>(to), name, type.get(), space.get(),
                                 H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
  return H5Awrite(target.get(), type.get(), value.data());
}

bool copy_attributes(hid_t from, hid_t to) {
  return H5Aiterate2(from, H5_INDEX_NAME, H5_ITER_INC, nullptr, copy_attribute, &to) >= 0;
}

bool copy_rows(hid_t from, hid_t to, hid_t type, hsize_t rows) {
  std::vector<char> buffer(kChunk * H5Tget_size(type));
  for (hsize_t begin = 0; begin < rows; begin += kChunk) {
    const hsize_t count = std::min(kChunk, rows - begin);
    const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const Handle space(H5Dget_space(from), H5Sclose);
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    if (H5Dread(from, type, memory.get(), space.get(), H5P_DEFAULT, buffer.data()) < 0 ||
        H5Dwrite(to, type, memory.get(), space.get(), H5P_DEFAULT, buffer.data()) < 0) {
      return false;
    }
  }
  return true;
}

/// Copies a dataset. Small chunks are joined and compressed; others are copied as they are.
bool copy_dataset(hid_t from, hid_t to, const char* name) {
  const Handle creation(H5Dget_create_plist(from), H5Pclose);
  hsize_t chunk = kLargeEnough;
  if (H5Pget_layout(creation.get()) == H5D_CHUNKED) H5Pget_chunk(creation.get(), 1, &chunk);
  if (chunk >= kLargeEnough) return H5Ocopy(from, ".", to, name, H5P_DEFAULT, H5P_DEFAULT) >= 0;
  const Handle type(H5Dget_type(from), H5Tclose);
  const Handle space(H5Dget_space(from), H5Sclose);
  hsize_t rows = 0;
  H5Sget_simple_extent_dims(space.get(), &rows, nullptr);
  chunk = std::clamp<hsize_t>(rows, 1, kChunk);
  H5Pset_chunk(creation.get(), 1, &chunk);
  if (H5Pget_nfilters(creation.get()) == 0) compress(creation.get());
  Handle target(
      H5Dcreate2(to, name, type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      H5Dclose);
  return target && copy_attributes(from, target.get()) &&
         copy_rows(from, target.get(), type.get(), rows) && H5Dclose(target.release()) >= 0;
}

bool copy_objects(hid_t from, hid_t to) {
  H5G_info_t group{};
  if (H5Gget_info(from, &group) < 0) return false;
  for (hsize_t i = 0; i < group.nlinks; ++i) {
    char name[kNameSize];
    if (H5Lget_name_by_idx(from, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof(name),
                           H5P_DEFAULT) < 0) {
      return false;
    }
    const Handle object(H5Oopen(from, name, H5P_DEFAULT), H5Oclose);
    if (H5Iget_type(object.get()) == H5I_DATASET) {
      if (!copy_dataset(object.get(), to, name)) return false;
      continue;
    }
    const Handle copy(H5Gcreate2(to, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    if (!copy || !copy_objects(object.get(), copy.get())) return false;
  }
  return true;
}

/// Makes sure that a file, which is created if missing, can grow to `bytes` bytes.
bool reserve(const std::string& path, std::uint64_t bytes) {
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && bytes > most.rlim_cur) return false;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return false;
  const bool done = fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0;
  const bool unknown = !done && (errno == EOPNOTSUPP || errno == ENOSYS);
  close(file);
  if (!unknown) return done;
  // Require 16 times the room, as other ranks may copy their files at the same time.
  std::error_code error;
  const fs::space_info space = fs::space(path, error);
  return !error && space.available / 16 > bytes;
}

bool copy_file(const std::string& path, const std::string& copy) {
  // HDF5 1.10 crashes where a copy does not fit on the disk, so room is reserved first.
  std::error_code error;
  const std::uint64_t most = fs::file_size(path, error);
  if (error || !reserve(copy, most)) return false;
  const Handle from(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!from) return false;
  Handle to = create_file(copy, Space::packed);  // truncates: the room is free again
  if (!reserve(copy, most)) {
    to.release();  // closing it would write to a full disk
    return false;
  }
  return copy_attributes(from.get(), to.get()) && copy_objects(from.get(), to.get()) &&
         H5Fclose(to.release()) >= 0;
}

}  // namespace

void compact(const std::string& path, std::uint64_t rows_bytes) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error || size < kWorthwhile || size < (rows_bytes + kMetadata) / 10 * 11) return;
  const std::string copy = path + std::string(kUnfinished);
  bool whole = false;
  try {
    whole = copy_file(path, copy);
  } catch (const std::exception&) {
    // No room or no permission: the trace stays as it is, which is complete.
  }
  if (whole) fs::rename(copy, path, error);
  fs::remove(copy, error);
}

}  // namespace cadenza::trace
