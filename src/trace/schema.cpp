// SPDX-License-Identifier: Apache-2.0
#include "trace/schema.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace cadenza::trace {

using storage::Handle;

Table::Table(Start start, hid_t file, std::string path, const char* name, RowDescription rows,
             hsize_t chunk, Packing packing)
    : path_(std::move(path)),
      what_(fmt::format("cannot write {}", name)),
      description_(std::move(rows)) {
  // Rows are only appended, so the cache holds two chunks.
  const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  H5Pset_chunk_cache(access.get(), 7, 2 * chunk * H5Tget_size(description_.type.get()), 1.0);
  if (start == Start::create) {
    create(file, name, chunk, packing, access.get());
  } else {
    open(file, name, access.get());
  }
}

void Table::open(hid_t file, const char* name, hid_t access) {
  const std::string what = fmt::format("cannot open {}", name);
  dataset_ = Handle(checked(H5Dopen2(file, name, access), path_, what), H5Dclose);
  const Handle space(checked(H5Dget_space(dataset_.get()), path_, what), H5Sclose);
  H5Sget_simple_extent_dims(space.get(), &rows_, nullptr);
}

void Table::create(hid_t file, const char* name, hsize_t chunk, Packing packing, hid_t access) {
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const Handle space(H5Screate_simple(1, &none, &unlimited), H5Sclose);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(creation.get(), 1, &chunk);
  if (packing == Packing::compressed) compress(creation.get());
  dataset_ = Handle(checked(H5Dcreate2(file, name, description_.type.get(), space.get(),
                                       links.get(), creation.get(), access),
                            path_, fmt::format("cannot create {}", name)),
                    H5Dclose);
  write_description(dataset_.get(), path_, description_);
}

void Table::append(std::size_t count, const void* rows) {
  if (count == 0) return;
  const hsize_t added = count;
  const hsize_t size = rows_ + added;
  if (H5Dset_extent(dataset_.get(), &size) < 0) refuse(path_, what_);
  const Handle file_space(checked(H5Dget_space(dataset_.get()), path_, what_), H5Sclose);
  H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &rows_, nullptr, &added, nullptr);
  const Handle row_space(H5Screate_simple(1, &added, nullptr), H5Sclose);
  if (H5Dwrite(dataset_.get(), description_.type.get(), row_space.get(), file_space.get(),
               H5P_DEFAULT, rows) < 0) {
    refuse(path_, what_);
  }
  rows_ = size;
  changed_ = true;
}

void Table::flush() {
  if (!changed_) return;
  if (H5Dflush(dataset_.get()) < 0) refuse(path_, what_);
  changed_ = false;
}

namespace {

using storage::Handle;

/// Size of a page of the operating system, within which a write is atomic. A write across pages may
/// stop between them when the process is killed; readers would then wait forever for the rest of a
/// header, because its checksum is wrong.
constexpr hsize_t kPage = 4096;

void write_attribute(hid_t object, const std::string& path, const char* name, hid_t type,
                     const Handle& space, const void* value) {
  const std::string what = fmt::format("cannot write attribute {}", name);
  const Handle attribute(
      checked(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), path, what),
      H5Aclose);
  if (H5Awrite(attribute.get(), type, value) < 0) refuse(path, what);
}

void write_value(hid_t file, const std::string& path, const char* name, hid_t type,
                 const void* value) {
  write_attribute(file, path, name, type, Handle(H5Screate(H5S_SCALAR), H5Sclose), value);
}

void write_text(hid_t file, const std::string& path, const char* name, std::string_view value) {
  write_value(file, path, name, storage::text_type(value.size()).get(), std::string(value).c_str());
}

void write_texts(hid_t object, const std::string& path, const char* name,
                 const std::vector<std::string>& values) {
  std::size_t length = 1;
  for (const std::string& value : values) length = std::max(length, value.size());
  std::string cells(length * values.size(), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    copy_text(values[i], cells.data() + i * length, length);
  }
  const hsize_t count = values.size();
  const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  write_attribute(object, path, name, storage::text_type(length).get(), space, cells.data());
}

/// Access properties of the newest format, which reading while writing (SWMR) requires.
Handle newest_format() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  return access;
}

}  // namespace

void copy_text(const std::string& text, char* target, std::size_t size) {
  char* const end = std::copy_n(text.begin(), std::min(text.size(), size), target);
  std::fill(end, target + size, '\0');
}

RankRow to_row(const RankInfo& rank) {
  RankRow row;
  copy_text(rank.host, row.host.data(), row.host.size());
  row.rank = rank.rank;
  row.world = rank.world;
  row.local_rank = rank.local_rank;
  row.role = static_cast<std::uint32_t>(rank.role);
  row.data = rank.data;
  row.pipeline = rank.pipeline;
  row.tensor = rank.tensor;
  row.context = rank.context;
  row.server = rank.server;
  row.threads = rank.threads;
  copy_text(rank.device, row.device.data(), row.device.size());
  row.peak_flops = rank.peak_flops;
  copy_text(rank.attention_kernel, row.attention_kernel.data(), row.attention_kernel.size());
  row.started_ns = rank.started_ns;
  return row;
}

void compress(hid_t creation) {
  H5Pset_shuffle(creation);
  H5Pset_deflate(creation, 1);
}

Handle create_file(const std::string& path, Space space) {
  storage::initialise();
  const Handle access = newest_format();
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  if (space == Space::pages) {
    H5Pset_file_space_strategy(creation.get(), H5F_FSPACE_STRATEGY_PAGE, false, 1);
    H5Pset_file_space_page_size(creation.get(), kPage);
  }
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get());
  return {checked(id, path, "cannot create the trace"), H5Fclose};
}

Handle reopen_file(const std::string& path) {
  storage::initialise();
  const Handle access = newest_format();
  // Never open for plain writing: if the process ended then, nobody could read the file.
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDWR | H5F_ACC_SWMR_WRITE, access.get());
  return {checked(id, path, "cannot continue the trace"), H5Fclose};
}

void write_description(hid_t dataset, const std::string& path, const RowDescription& rows) {
  for (const auto& [name, texts] : rows.attributes) {
    write_texts(dataset, path, name.c_str(), texts);
  }
}

void write_rows(hid_t file, const std::string& path, const char* name, const RowDescription& type,
                std::size_t count, const void* rows) {
  const std::string what = fmt::format("cannot write {}", name);
  const hsize_t size = count;
  const Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  Handle dataset(checked(H5Dcreate2(file, name, type.type.get(), space.get(), links.get(),
                                    H5P_DEFAULT, H5P_DEFAULT),
                         path, what),
                 H5Dclose);
  write_description(dataset.get(), path, type);
  if (H5Dwrite(dataset.get(), type.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) < 0)
    refuse(path, what);
  // HDF5 holds small datasets back until they are closed, so only closing reports a full disk.
  if (H5Dclose(dataset.release()) < 0) refuse(path, what);
}

void write_run(hid_t file, const std::string& path, const RunInfo& run, int rank, int world) {
  write_text(file, path, "schema", kSchema);
  write_text(file, path, "producer", run.producer);
  write_text(file, path, "run_id", run.run_id);
  write_text(file, path, "code_version", run.code_version);
  write_text(file, path, "code_revision", run.code_revision);
  write_text(file, path, "build", run.build);
  write_value(file, path, "seed", H5T_NATIVE_UINT64, &run.seed);
  write_value(file, path, "rank", H5T_NATIVE_INT, &rank);
  write_value(file, path, "world", H5T_NATIVE_INT, &world);
  write_text(file, path, "time_unit", "ns");
  write_text(file, path, "bytes_unit", "B");
  write_text(file, path, "flops_convention", "mul+add=2");
  write_text(file, path, "created_utc", run.created_utc);
  const RowDescription characters{Handle(H5Tcopy(H5T_STD_U8LE), H5Tclose), {}};
  write_rows(file, path, "/meta/config_yaml", characters, run.config_yaml.size(),
             run.config_yaml.data());
  write_rows(file, path, "/meta/machine_yaml", characters, run.machine_yaml.size(),
             run.machine_yaml.data());
}

}  // namespace cadenza::trace
