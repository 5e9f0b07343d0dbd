// SPDX-License-Identifier: Apache-2.0
#include "trace/table.hpp"

#include <fmt/format.h>

namespace cadenza::trace {

using storage::Handle;

Table::Table(Start start, hid_t file, std::string path, const char* name, RowDescription rows,
             hsize_t chunk, Packing packing)
    : path_(std::move(path)),
      what_(fmt::format("cannot write {}", name)),
      description_(std::move(rows)) {
  // Rows are only appended: two chunks are all that is ever touched.
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

}  // namespace cadenza::trace
