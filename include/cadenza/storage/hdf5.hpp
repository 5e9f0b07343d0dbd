// SPDX-License-Identifier: Apache-2.0
// RAII wrappers of the parts of HDF5 that checkpoints, attend's files and traces need, with errors
// that name the file.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cadenza::storage {

/// Owns an HDF5 identifier and closes it with its closer.
class Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), closer_(other.closer_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      closer_ = other.closer_;
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  void reset() {
    if (id_ >= 0) closer_(id_);
    id_ = H5I_INVALID_HID;
  }
  /// Gives up the identifier without closing it.
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

/// Silences HDF5 and removes its exit handler, in which version 1.10 crashes over data that it
/// could not write. All code here calls it before its first HDF5 call; repeated calls are cheap.
void initialise();

/// The reason why the last HDF5 call failed: the system's message ("No space left on device") if
/// the system refused, else HDF5's own.
std::string last_failure();

/// Throws Error(data) with the path, `what` was tried, and last_failure().
[[noreturn]] void refuse(const std::string& path, const std::string& what);

/// Returns `id`, or calls refuse() where it is invalid.
hid_t checked(hid_t id, const std::string& path, const std::string& what);

using Shape = std::vector<hsize_t>;

/// The HDF5 type of T: float, double, std::int32_t, std::int64_t, std::uint64_t.
template <typename T>
hid_t native_type();

/// Returns the type of texts of `bytes` bytes (at least one) in UTF-8, which h5py reads as bytes;
/// shorter ones are padded with zeros.
Handle text_type(std::size_t bytes);

/// Whether a read detects a changed bit. `checksums` stores datasets in chunks of about 1 MiB with
/// a Fletcher32 checksum each, and everything else in the format of HDF5 1.10, whose headers and
/// indexes all have checksums. HDF5 1.10 and newer read it.
enum class Protection { none, checksums };

/// A file of datasets. Groups in a dataset's path are made as needed. HDF5's own error stack is
/// silent; every failure is one Error(data) that names file and dataset.
///
/// Files are not trusted. A dataset must lie in the file itself (no link to another place, no
/// external or virtual storage), take no more memory than the file can hold, and have numbers of a
/// type that fits T: floats for floats, integers for integers of at least their range. Anything
/// else is refused before memory is taken.
class File {
 public:
  /// Creates a file, in place of an existing one.
  static File create(const std::string& path, Protection protection = Protection::none);
  static File open(const std::string& path);  ///< read only

  template <typename T>
  void write(const std::string& dataset, const Shape& shape, const T* values);
  /// Writes a list of texts, of fixed length like those of attributes.
  void write_texts(const std::string& dataset, std::span<const std::string> texts);
  /// Writes attributes of the root group; texts have a fixed length (h5py reads them as bytes).
  void write_attribute(const std::string& name, const std::string& value);
  void write_attribute(const std::string& name, std::int64_t value);
  void write_attribute(const std::string& name, double value);

  bool contains(const std::string& dataset) const;
  /// The shape of a dataset. @throws Error(data) where it has more elements than the file can hold.
  Shape shape(const std::string& dataset) const;
  /// Requires that every chunk of the dataset has a checksum and no other name leads to it.
  /// @throws Error(data)
  void require_checksums(const std::string& dataset) const;
  /// Reads a whole dataset. @throws Error(data) unless its shape is `expected`.
  template <typename T>
  std::vector<T> read(const std::string& dataset, const Shape& expected) const;
  /// Reads elements [begin, begin + count) along every axis, in row-major order.
  template <typename T>
  std::vector<T> read_part(const std::string& dataset, const Shape& begin,
                           const Shape& count) const;
  /// Reads attributes of the root group that hold one value.
  std::int64_t read_attribute(const std::string& name) const;
  std::string read_text_attribute(const std::string& name) const;  ///< empty where there is none
  std::vector<std::string> datasets() const;                       ///< all paths, sorted

  /// Flushes and closes the file; reports a full disk.
  void close();
  const std::string& path() const { return path_; }
  hid_t id() const { return file_.get(); }

 private:
  void write_values(const std::string& dataset, const Shape& shape, hid_t type, const void* values);
  File(std::string path, Handle file, Protection protection)
      : path_(std::move(path)), file_(std::move(file)), protection_(protection) {}
  std::string path_;
  Handle file_;
  Protection protection_;
};

}  // namespace cadenza::storage
