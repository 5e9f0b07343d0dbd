// SPDX-License-Identifier: Apache-2.0
// HDF5 behind RAII: what checkpoints, attend's files and traces need of it, with errors that name
// the file.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cadenza::storage {

/// Owns an HDF5 identifier and closes it with the closer it was made with.
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
  /// Gives the identifier up without closing it.
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

/// Makes HDF5 silent, and leaves nothing to it at exit, where version 1.10 crashes over data that
/// it could not write before. Called by everything here before its first HDF5 call; cheap when
/// done.
void initialise();

/// Why the HDF5 call before this one failed: the system's words ("No space left on device") where
/// it was the system, else HDF5's own.
std::string last_failure();

/// Throws Error(data): path, what was tried, and why the HDF5 call before this one failed.
[[noreturn]] void refuse(const std::string& path, const std::string& what);

/// `id`, or refuse().
hid_t checked(hid_t id, const std::string& path, const std::string& what);

using Shape = std::vector<hsize_t>;

/// HDF5 type of T: float, double, std::int32_t, std::int64_t, std::uint64_t.
template <typename T>
hid_t native_type();

/// Whether a changed bit is noticed when it is read: `checksums` stores datasets as chunks with a
/// Fletcher32 sum each, about 1 MiB large, and everything else in the format of HDF5 1.10, whose
/// headers and indexes all have sums. HDF5 1.10 and newer read it.
enum class Protection { none, checksums };

/// A file of datasets. Groups in a dataset's path are made as needed. HDF5's own error stack is
/// silent; every failure is one Error(data) that names file and dataset.
///
/// What is read may come from anywhere: a dataset lies in the file itself (no link to another
/// place, no external or virtual storage), takes no more memory than the file can hold, and has
/// numbers of a type that fits T: floats for floats, whole numbers for whole numbers of at least
/// their range. Anything else is refused before memory is taken.
class File {
 public:
  /// Replaces an existing file.
  static File create(const std::string& path, Protection protection = Protection::none);
  static File open(const std::string& path);  ///< read only

  template <typename T>
  void write(const std::string& dataset, const Shape& shape, const T* values);
  /// A list of texts, of fixed length as attributes are.
  void write_texts(const std::string& dataset, std::span<const std::string> texts);
  /// Attributes of the root group; strings have a fixed length (h5py reads them as bytes).
  void write_attribute(const std::string& name, const std::string& value);
  void write_attribute(const std::string& name, std::int64_t value);
  void write_attribute(const std::string& name, double value);

  bool contains(const std::string& dataset) const;
  /// The product of its extents is within what the file can hold.
  Shape shape(const std::string& dataset) const;
  /// @throws Error(data) unless every chunk of the dataset has a checksum, and no other name leads
  /// to it
  void require_checksums(const std::string& dataset) const;
  /// Reads a whole dataset. @throws Error(data) unless its shape is `expected`.
  template <typename T>
  std::vector<T> read(const std::string& dataset, const Shape& expected) const;
  /// Reads elements [begin, begin + count) along every axis, in row-major order.
  template <typename T>
  std::vector<T> read_part(const std::string& dataset, const Shape& begin,
                           const Shape& count) const;
  /// Attributes of the root group that hold one value.
  std::int64_t read_attribute(const std::string& name) const;
  std::string read_text_attribute(const std::string& name) const;  ///< empty where there is none
  std::vector<std::string> datasets() const;                       ///< paths of all, sorted

  /// Flushes and closes; a full disk is reported here.
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
