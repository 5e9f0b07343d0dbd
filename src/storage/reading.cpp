// SPDX-License-Identifier: Apache-2.0
// Reading of HDF5 files. A file may be damaged or malicious, so its claims are checked against its
// size before memory is taken.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "storage/breakdown.hpp"

namespace cadenza::storage {
namespace {

constexpr hsize_t kMostCompression = 1032;         // largest ratio of gzip
constexpr hsize_t kUsualChunk = hsize_t{1} << 26;  // bytes
constexpr int kDeepestGroup = 32;

hsize_t size_of(hid_t file, const std::string& path) {
  hsize_t bytes = 0;
  if (H5Fget_filesize(file, &bytes) < 0) refuse(path, "cannot read the file's size");
  return bytes;
}

/// The product of `extents` and `factor`; H5S_UNLIMITED where it overflows.
hsize_t product(const Shape& extents, hsize_t factor) {
  if (std::ranges::find(extents, hsize_t{0}) != extents.end()) return 0;
  hsize_t result = factor;
  for (const hsize_t extent : extents) {
    if (__builtin_mul_overflow(result, extent, &result)) return H5S_UNLIMITED;
  }
  return result;
}

std::string describe(hid_t type) {
  if (H5Tcommitted(type) > 0) return "a named type";
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_INTEGER) {
    return fmt::format("{}int{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "",
                       H5Tget_precision(type));
  }
  if (kind == H5T_FLOAT) return fmt::format("float{}", H5Tget_precision(type));
  if (kind == H5T_STRING) return "text";
  if (kind == H5T_COMPOUND) return "records";
  return kind == H5T_VLEN ? "lists" : "values of another kind";
}

/// Whether type `wanted` holds every number of type `found`; floats may be rounded.
bool fits(hid_t found, hid_t wanted) {
  if (H5Tcommitted(found) != 0 || H5Tget_class(found) != H5Tget_class(wanted)) return false;
  if (H5Tget_class(found) != H5T_INTEGER) return true;
  const auto has_sign = [](hid_t type) { return H5Tget_sign(type) != H5T_SGN_NONE; };
  const auto digits = [&](hid_t type) { return H5Tget_precision(type) - (has_sign(type) ? 1 : 0); };
  return digits(found) <= digits(wanted) && (has_sign(wanted) || !has_sign(found));
}

void require_numbers(hid_t found, hid_t wanted, const std::string& path, const std::string& what) {
  if (fits(found, wanted)) return;
  const bool floats = H5Tget_class(wanted) == H5T_FLOAT;
  fail(ExitCode::data, "{}: {} holds {}; valid: {}", path, what, describe(found),
       floats ? "floating-point numbers" : describe(wanted) + " or smaller");
}

/// An attribute with one value, and its type in the file.
struct Scalar {
  Handle attribute, type;
};

Scalar open_scalar(hid_t file, const std::string& path, const std::string& name) {
  const std::string what = fmt::format("cannot read attribute {}", name);
  Handle attribute(checked(H5Aopen(file, name.c_str(), H5P_DEFAULT), path, what), H5Aclose);
  const Handle space(checked(H5Aget_space(attribute.get()), path, what), H5Sclose);
  const hssize_t values = H5Sget_simple_extent_npoints(space.get());
  if (values != 1) {
    fail(ExitCode::data, "{}: attribute {} has {} values; valid: 1", path, name, values);
  }
  Handle type(checked(H5Aget_type(attribute.get()), path, what), H5Tclose);
  if (H5Tget_size(type.get()) > size_of(file, path)) {
    fail(ExitCode::data, "{}: attribute {} has {} bytes, more than the file", path, name,
         H5Tget_size(type.get()));
  }
  return {std::move(attribute), std::move(type)};
}

/// A dataset whose claims have been checked.
struct Source {
  Handle dataset, space, type;
  Shape shape;
};

void require_own_storage(hid_t creation, const std::string& path, const std::string& dataset) {
  if (H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) > 0) {
    fail(ExitCode::data, "{}: dataset {} is stored in other files; valid: in this file", path,
         dataset);
  }
}

/// Bytes of a chunk, which is always read whole; 0 where there are no chunks.
hsize_t chunk_bytes(hid_t creation, std::size_t rank, hsize_t element_bytes) {
  if (H5Pget_layout(creation) != H5D_CHUNKED) return 0;
  Shape chunk(rank);
  H5Pget_chunk(creation, static_cast<int>(rank), chunk.data());
  return product(chunk, element_bytes);
}

void require_stored(hid_t file, const Source& source, hid_t creation, const std::string& path,
                    const std::string& name) {
  const hsize_t element = H5Tget_size(source.type.get());
  const hsize_t bytes = product(source.shape, element);
  const hsize_t stored = H5Dget_storage_size(source.dataset.get());
  const hsize_t packing = H5Pget_nfilters(creation) > 0 ? kMostCompression : 1;
  const hsize_t chunk = chunk_bytes(creation, source.shape.size(), element);
  if (stored > size_of(file, path) || bytes / packing > stored ||
      chunk > std::max(bytes, kUsualChunk)) {
    fail(ExitCode::data, "{}: dataset {} of shape [{}] takes {} bytes, of which the file holds {}",
         path, name, fmt::join(source.shape, ", "),
         bytes == H5S_UNLIMITED ? "2^64 or more" : std::to_string(std::max(bytes, chunk)), stored);
  }
}

Source open_source(const File& file, const std::string& name) {
  const std::string what = fmt::format("cannot open dataset {}", name);
  if (!file.contains(name)) fail(ExitCode::data, "{}: has no dataset {}", file.path(), name);
  Source source;
  source.dataset =
      Handle(checked(H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), file.path(), what), H5Dclose);
  const hid_t dataset = source.dataset.get();
  source.space = Handle(checked(H5Dget_space(dataset), file.path(), what), H5Sclose);
  source.type = Handle(checked(H5Dget_type(dataset), file.path(), what), H5Tclose);
  const Handle creation(checked(H5Dget_create_plist(dataset), file.path(), what), H5Pclose);
  require_own_storage(creation.get(), file.path(), name);
  if (H5Sget_simple_extent_type(source.space.get()) == H5S_NULL) {
    fail(ExitCode::data, "{}: dataset {} holds nothing", file.path(), name);
  }
  source.shape.resize(static_cast<std::size_t>(H5Sget_simple_extent_ndims(source.space.get())));
  if (!source.shape.empty()) {
    H5Sget_simple_extent_dims(source.space.get(), source.shape.data(), nullptr);
  }
  require_stored(file.id(), source, creation.get(), file.path(), name);
  return source;
}

/// Number of hard links to an object.
unsigned names_of(hid_t object) {
#if H5_VERSION_GE(1, 12, 0)
  H5O_info2_t info{};
  return H5Oget_info3(object, &info, H5O_INFO_BASIC) < 0 ? 0 : info.rc;
#else
  H5O_info_t info{};
  return H5Oget_info(object, &info) < 0 ? 0 : info.rc;
#endif
}

/// Requires a regular file (or a path that open reports): HDF5's message for a missing file is
/// unclear, and it would wait for a pipe's writer.
void require_file(const std::string& path) {
  using std::filesystem::file_type;
  std::error_code unseen;  // ignored: opening the file reports it
  const file_type type = std::filesystem::status(path, unseen).type();
  if (type == file_type::not_found) fail(ExitCode::data, "{}: no such file", path);
  const bool device = type == file_type::character || type == file_type::block;
  const char* found = type == file_type::directory ? "folder"
                      : type == file_type::fifo    ? "pipe"
                                                   : "device";
  if (device || type == file_type::directory || type == file_type::fifo) {
    fail(ExitCode::data, "{}: is a {}; valid: an HDF5 file", path, found);
  }
}

/// Above 0 if the file has HDF5's signature, 0 if not, below 0 if it cannot be read.
htri_t is_hdf5(const std::string& path) {
#if H5_VERSION_GE(1, 12, 0)
  return H5Fis_accessible(path.c_str(), H5P_DEFAULT);
#else
  return H5Fis_hdf5(path.c_str());
#endif
}

struct Listing {
  std::vector<std::string> paths;
  std::string refused;  ///< reason why the listing ended early
};

/// H5Lvisit callback: collects the paths of datasets.
herr_t add_dataset(hid_t file, const char* path, const H5L_info_t* link, void* data) {
  auto& listing = *static_cast<Listing*>(data);
  const std::string name = path;
  if (link->type != H5L_TYPE_HARD) listing.refused = fmt::format("{} is a link", name);
  if (std::ranges::count(name, '/') > kDeepestGroup) listing.refused = "groups nest too deeply";
  if (!listing.refused.empty()) return -1;
  const Handle object(H5Oopen(file, path, H5P_DEFAULT), H5Oclose);
  if (!object) return -1;
  if (H5Iget_type(object.get()) == H5I_DATASET) listing.paths.push_back(name);
  return 0;
}

}  // namespace

File File::open(const std::string& path) {
  initialise();
  require_file(path);
  const Reading reading(path);
  if (is_hdf5(path) == 0) fail(ExitCode::data, "{}: is not an HDF5 file", path);
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  return {path, Handle(checked(id, path, "cannot open as an HDF5 file"), H5Fclose),
          Protection::none};
}

bool File::contains(const std::string& dataset) const {
  const Reading reading(path_);
  // H5Lexists fails where a group on the way is missing, so each group is checked first.
  for (auto end = dataset.find('/', 1);; end = dataset.find('/', end + 1)) {
    const std::string part = dataset.substr(0, end);
    if (H5Lexists(id(), part.c_str(), H5P_DEFAULT) <= 0) return false;
    H5L_info_t link{};
    if (H5Lget_info(id(), part.c_str(), &link, H5P_DEFAULT) < 0) {
      refuse(path_, fmt::format("cannot find {}", part));
    }
    if (link.type != H5L_TYPE_HARD) {
      fail(ExitCode::data, "{}: {} is a link; valid: a dataset of the file itself", path_, part);
    }
    if (end == std::string::npos) return true;
  }
}

void File::require_checksums(const std::string& dataset) const {
  const Reading reading(path_);
  const std::string what = fmt::format("cannot read {}", dataset);
  const Handle data(checked(H5Dopen2(id(), dataset.c_str(), H5P_DEFAULT), path_, what), H5Dclose);
  const Handle creation(checked(H5Dget_create_plist(data.get()), path_, what), H5Pclose);
  bool found = false;
  for (int i = 0; i < H5Pget_nfilters(creation.get()); ++i) {
    std::size_t values = 0;
    found |= H5Pget_filter2(creation.get(), static_cast<unsigned>(i), nullptr, &values, nullptr, 0,
                            nullptr, nullptr) == H5Z_FILTER_FLETCHER32;
  }
  if (!found) {
    fail(ExitCode::data, "{}: {} has no checksum (Fletcher32); valid: a file as it was written",
         path_, dataset);
  }
  if (names_of(data.get()) != 1) {
    fail(ExitCode::data, "{}: {} has a second name (a hard link); valid: one name", path_, dataset);
  }
}

Shape File::shape(const std::string& dataset) const {
  const Reading reading(path_);
  return open_source(*this, dataset).shape;
}

template <typename T>
std::vector<T> File::read(const std::string& dataset, const Shape& expected) const {
  const Shape found = shape(dataset);
  if (found != expected) {
    fail(ExitCode::data, "{}: dataset {} has shape [{}], expected [{}]", path_, dataset,
         fmt::join(found, ", "), fmt::join(expected, ", "));
  }
  return read_part<T>(dataset, Shape(expected.size()), expected);
}

template <typename T>
std::vector<T> File::read_part(const std::string& dataset, const Shape& begin,
                               const Shape& count) const {
  const Reading reading(path_);
  const Source source = open_source(*this, dataset);
  require_numbers(source.type.get(), native_type<T>(), path_, "dataset " + dataset);
  const std::string what = fmt::format("cannot read dataset {} from [{}], [{}] elements", dataset,
                                       fmt::join(begin, ", "), fmt::join(count, ", "));
  bool inside = begin.size() == source.shape.size() && count.size() == source.shape.size();
  for (std::size_t axis = 0; inside && axis < count.size(); ++axis) {
    inside = begin[axis] <= source.shape[axis] && count[axis] <= source.shape[axis] - begin[axis];
  }
  if (!inside) {
    fail(ExitCode::data, "{}: {}: its shape is [{}]", path_, what, fmt::join(source.shape, ", "));
  }
  std::vector<T> values(product(count, 1));
  // Memory has the shape of the selection, as HDF5 would copy element by element otherwise.
  const hid_t shaped =
      count.empty() ? H5Screate(H5S_SCALAR)
                    : H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr);
  const Handle memory(checked(shaped, path_, what), H5Sclose);
  if (!count.empty() && H5Sselect_hyperslab(source.space.get(), H5S_SELECT_SET, begin.data(),
                                            nullptr, count.data(), nullptr) < 0) {
    refuse(path_, what);
  }
  if (H5Dread(source.dataset.get(), native_type<T>(), memory.get(), source.space.get(), H5P_DEFAULT,
              values.data()) < 0) {
    refuse(path_, what);
  }
  return values;
}

std::int64_t File::read_attribute(const std::string& name) const {
  const Reading reading(path_);
  const Scalar scalar = open_scalar(id(), path_, name);
  require_numbers(scalar.type.get(), native_type<std::int64_t>(), path_, "attribute " + name);
  std::int64_t value = 0;
  if (H5Aread(scalar.attribute.get(), native_type<std::int64_t>(), &value) < 0) {
    refuse(path_, fmt::format("cannot read attribute {}", name));
  }
  return value;
}

std::string File::read_text_attribute(const std::string& name) const {
  const Reading reading(path_);
  if (H5Aexists(id(), name.c_str()) <= 0) return "";
  const Scalar scalar = open_scalar(id(), path_, name);
  const hid_t type = scalar.type.get();
  if (H5Tget_class(type) != H5T_STRING || H5Tcommitted(type) != 0) {
    fail(ExitCode::data, "{}: attribute {} holds {}; valid: text", path_, name, describe(type));
  }
  const std::string what = fmt::format("cannot read attribute {}", name);
  if (H5Tis_variable_str(type) > 0) {  // h5py writes these
    char* text = nullptr;
    if (H5Aread(scalar.attribute.get(), type, static_cast<void*>(&text)) < 0) refuse(path_, what);
    std::string copy = text != nullptr ? text : "";
    H5free_memory(text);
    return copy;
  }
  std::string text(H5Tget_size(type), '\0');
  if (H5Aread(scalar.attribute.get(), type, text.data()) < 0) refuse(path_, what);
  return text.c_str();  // without the padding
}

std::vector<std::string> File::datasets() const {
  const Reading reading(path_);
  Listing listing;
  // Native order: when HDF5 1.10 sorts the links of a large damaged group, it frees memory that it
  // never allocated.
  if (H5Lvisit(id(), H5_INDEX_NAME, H5_ITER_NATIVE, add_dataset, &listing) < 0) {
    if (listing.refused.empty()) refuse(path_, "cannot list the datasets");
    fail(ExitCode::data, "{}: {}; valid: datasets of the file itself", path_, listing.refused);
  }
  std::ranges::sort(listing.paths);
  return listing.paths;
}

#define CADENZA_INSTANTIATE(T)                                                   \
  template std::vector<T> File::read<T>(const std::string&, const Shape&) const; \
  template std::vector<T> File::read_part<T>(const std::string&, const Shape&, const Shape&) const;
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(std::int32_t)
CADENZA_INSTANTIATE(std::int64_t)
CADENZA_INSTANTIATE(std::uint64_t)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::storage
