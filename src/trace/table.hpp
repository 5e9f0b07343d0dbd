// SPDX-License-Identifier: Apache-2.0
// A dataset that grows by rows while others may be reading it.
#pragma once

#include <cstdint>
#include <string>

#include "cadenza/storage/hdf5.hpp"
#include "trace/schema.hpp"

namespace cadenza::trace {

enum class Packing {
  raw,         ///< a chunk is rewritten in place: for a row or a few per step
  compressed,  ///< shuffle and gzip 1: for many rows per step, all of one shape
};

enum class Start { create, resume };

class Table {
 public:
  /// Creates the dataset, or goes on with the one that the file has.
  /// @param chunk  rows; with compression few, since a chunk that is rewritten under SWMR leaves
  ///               its old place unused
  Table(Start start, hid_t file, std::string path, const char* name, RowDescription rows,
        hsize_t chunk, Packing packing);

  /// @throws Error(data)
  void append(std::size_t count, const void* rows);
  /// Gives appended rows to the operating system: they outlive this process. @throws Error(data)
  void flush();

  std::uint64_t rows() const { return rows_; }
  /// That the rows take in the file, compressed.
  std::uint64_t bytes() const { return H5Dget_storage_size(dataset_.get()); }
  void close() { dataset_.reset(); }
  /// Gives the dataset up unclosed, after a failed write.
  void abandon() { dataset_.release(); }

 private:
  void create(hid_t file, const char* name, hsize_t chunk, Packing packing, hid_t access);
  void open(hid_t file, const char* name, hid_t access);

  std::string path_;
  std::string what_;
  RowDescription description_;
  storage::Handle dataset_;
  hsize_t rows_ = 0;
  bool changed_ = false;
};

}  // namespace cadenza::trace
