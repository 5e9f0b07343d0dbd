// SPDX-License-Identifier: Apache-2.0
// Rows of cadenza-trace/1 as HDF5 types, the datasets that hold them, and the description of the
// run in every file. docs/trace.md has the meaning of each field.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cadenza/storage/hdf5.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::trace {

using storage::checked;
using storage::refuse;

inline constexpr std::size_t kNameLength = 96;
using Name = std::array<char, kNameLength>;

/// A row of /meta/rank and of /ranks in run.h5.
struct RankRow {
  std::array<char, 64> host{};
  std::int32_t rank = 0, world = 0, local_rank = 0;
  std::uint32_t role = 0;
  std::int32_t data = 0, pipeline = 0, tensor = 0, context = 0, server = 0, threads = 0;
  std::array<char, 64> device{};
  double peak_flops = 0;
  std::array<char, 64> attention_kernel{};
  std::int64_t started_ns = -1;
};

enum class State : std::uint32_t { open = 0, clean = 1, signalled = 2, error = 3 };
inline constexpr std::array<Named<State>, 4> kStateNames = {{{State::open, "open"},
                                                             {State::clean, "clean"},
                                                             {State::signalled, "signalled"},
                                                             {State::error, "error"}}};

/// The one row of /meta/status, overwritten in place.
struct StatusRow {
  State state = State::open;
  std::int32_t signal = 0;
  std::int64_t last_step = -1;
  std::uint64_t n_events = 0;
  std::uint64_t n_dropped = 0;
  std::int64_t writer_ns = 0;
};

RankRow to_row(const RankInfo& rank);

/// Copies as much of `text` as fits; the rest of `target` is zero.
void copy_text(const std::string& text, char* target, std::size_t size);

/// The description of a table of rows.
struct RowDescription {
  storage::Handle type;  ///< equal in the file and in memory; enumerations name their numbers
  /// Attributes of the dataset, lists of texts: "units", one per field, "" for counts; "kinds", the
  /// columns of an array.
  std::map<std::string, std::vector<std::string>> attributes;
};
template <typename Row>
RowDescription describe_rows();

/// Writes the attributes of a dataset. @throws Error(data)
void write_description(hid_t dataset, const std::string& path, const RowDescription& rows);

/// Sets the compression of a dataset of rows.
/// @param creation  its creation properties
void compress(hid_t creation);

enum class Space {
  packed,  ///< no gaps: for files that are written once
  pages,   ///< no header or index of HDF5 crosses a border of pages: for files that grow
};

/// Creates a file in the newest format, which reading while writing requires.
/// @throws Error(data)
storage::Handle create_file(const std::string& path, Space space);

/// Opens a file that create_file made and that was closed properly, to continue writing.
/// @throws Error(data)
storage::Handle reopen_file(const std::string& path);

/// Writes the attributes of `/` and /meta/config_yaml.
/// @param rank  -1 in run.h5, which belongs to no rank
/// @throws Error(data)
void write_run(hid_t file, const std::string& path, const RunInfo& run, int rank, int world);

/// Writes a dataset with a fixed number of rows at once and closes it. @throws Error(data)
void write_rows(hid_t file, const std::string& path, const char* name, const RowDescription& type,
                std::size_t count, const void* rows);

// --- A dataset that grows by rows while others may read it ---

enum class Packing {
  raw,         ///< chunks are rewritten in place: for few rows per step
  compressed,  ///< shuffle and gzip 1: for many similar rows per step
};

enum class Start { create, resume };

class Table {
 public:
  /// Creates the dataset, or continues the one in the file.
  /// @param chunk  rows; few with compression, as a chunk rewritten under SWMR leaves its old place
  ///               unused
  Table(Start start, hid_t file, std::string path, const char* name, RowDescription rows,
        hsize_t chunk, Packing packing);

  /// Appends rows. @throws Error(data)
  void append(std::size_t count, const void* rows);
  /// Gives appended rows to the operating system, so that they outlive this process.
  /// @throws Error(data)
  void flush();

  std::uint64_t rows() const { return rows_; }
  /// Bytes of the rows in the file, compressed.
  std::uint64_t bytes() const { return H5Dget_storage_size(dataset_.get()); }
  void close() { dataset_.reset(); }
  /// Gives up the dataset without closing it, after a failed write.
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

// Compaction of traces of short steps. Under SWMR a rewritten chunk leaves its old place unused,
// and with few rows per step most chunks are rewritten several times. Such traces have small
// chunks, to waste less; in large chunks the same rows take less space.

/// Replaces a closed trace by a copy in large chunks without unused places, unless it is small or
/// less than a tenth of it is unused. The copy is renamed as a whole; where there is no room for
/// it, the trace stays as it is.
/// @param rows_bytes  bytes that its datasets need
void compact(const std::string& path, std::uint64_t rows_bytes);

}  // namespace cadenza::trace
