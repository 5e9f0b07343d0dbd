// SPDX-License-Identifier: Apache-2.0
#include "mutate_hdf5.hpp"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "cadenza/storage/hdf5.hpp"
#include "libfuzzer.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

using storage::Handle;

/// Changes one object of a sound file after another.
class Editor {
  unsigned below(unsigned count) { return static_cast<unsigned>(random_() % count); }
  template <typename Container>
  const auto& pick(const Container& all) {
    return all[below(static_cast<unsigned>(std::size(all)))];
  }

 public:
  Editor(const std::string& path, unsigned seed)
      : file_(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose), random_(seed) {
    H5Lvisit(file_.get(), H5_INDEX_NAME, H5_ITER_INC, add_name, &names_);
    H5Aiterate2(file_.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add_attribute, &attributes_);
    std::ranges::shuffle(attributes_, random_);
  }

  void edit() {
    const std::string& name = pick(names_);
    switch (below(8)) {
      case 0:
        return remove(name);
      case 1:
        return link(name);
      case 2:
        return put_values(name);
      case 3:
      case 4:
        return put_attribute();
      default:
        return put_dataset(name);
    }
  }

 private:
  static herr_t add_name(hid_t, const char* name, const H5L_info_t*, void* names) {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  }
  static herr_t add_attribute(hid_t, const char* name, const H5A_info_t*, void* names) {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  }

  void remove(const std::string& name) { H5Ldelete(file_.get(), name.c_str(), H5P_DEFAULT); }

  /// Another object's name, a name of nothing, itself, a group, another file.
  void link(const std::string& name) {
    remove(name);
    switch (below(5)) {
      case 0:
        H5Lcreate_soft(pick(names_).c_str(), file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
        return;
      case 1:
        H5Lcreate_soft("/nothing", file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
        return;
      case 2:
        H5Lcreate_hard(file_.get(), "/", file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
        return;
      case 3:
        H5Lcreate_external("other.h5", pick(names_).c_str(), file_.get(), name.c_str(), H5P_DEFAULT,
                           H5P_DEFAULT);
        return;
      default:
        Handle(H5Gcreate2(file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
               H5Gclose);
    }
  }

  /// Of the kinds that a file may hold where numbers are expected.
  Handle type() {
    static const hid_t kPlain[] = {H5T_NATIVE_FLOAT,  H5T_NATIVE_DOUBLE, H5T_NATIVE_INT64,
                                   H5T_NATIVE_UINT64, H5T_NATIVE_INT8,   H5T_STD_I32BE,
                                   H5T_IEEE_F64BE,    H5T_NATIVE_B8,     H5T_STD_REF_OBJ};
    Handle made(H5Tcopy(pick(kPlain)), H5Tclose);
    const hsize_t shape[2] = {below(3) + 1, below(3000) + 1};
    switch (below(8)) {
      case 0:
        made = Handle(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(made.get(), below(2) == 0 ? H5T_VARIABLE : 1 + below(40));
        break;
      case 1:
        made = Handle(H5Tvlen_create(made.get()), H5Tclose);
        break;
      case 2:
        made = Handle(H5Tarray_create2(made.get(), below(2) + 1, shape), H5Tclose);
        break;
      case 3:
        made = Handle(H5Tcreate(H5T_OPAQUE, below(100) + 1), H5Tclose);
        break;
      case 4: {
        Handle record(H5Tcreate(H5T_COMPOUND, 16), H5Tclose);
        H5Tinsert(record.get(), "a", 0, H5T_NATIVE_INT64);
        H5Tinsert(record.get(), "b", 8, H5T_NATIVE_DOUBLE);
        made = std::move(record);
        break;
      }
      default:
        break;
    }
    return made;
  }

  Handle space() {
    if (below(8) == 0) return {H5Screate(below(2) == 0 ? H5S_NULL : H5S_SCALAR), H5Sclose};
    std::array<hsize_t, 4> shape{};
    for (hsize_t& size : shape) size = below(3) == 0 ? pick(kSizes) : below(9);
    return {H5Screate_simple(static_cast<int>(below(4) + 1), shape.data(), nullptr), H5Sclose};
  }

  /// Contiguous, in chunks, with checksums, compressed, or the bytes of another file.
  Handle storage_of(const Handle& space) {
    Handle list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    const unsigned kind = below(5);
    if (kind == 0) H5Pset_external(list.get(), "/proc/self/exe", 0, H5F_UNLIMITED);
    if (kind == 1 || rank <= 0) return list;
    std::array<hsize_t, 4> chunk{};
    for (hsize_t& size : chunk) size = below(16) + 1;
    H5Pset_chunk(list.get(), rank, chunk.data());
    if (kind == 2) H5Pset_fletcher32(list.get());
    if (kind == 3) H5Pset_deflate(list.get(), 1);
    return list;
  }

  void put_dataset(const std::string& name) {
    const Handle form = below(3) == 0 ? type() : Handle(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
    const Handle size = space();
    const Handle list = storage_of(size);
    remove(name);
    Handle(H5Dcreate2(file_.get(), name.c_str(), form.get(), size.get(), H5P_DEFAULT, list.get(),
                      H5P_DEFAULT),
           H5Dclose);
  }

  /// Numbers that are hard to add, to convert or to believe.
  void put_values(const std::string& name) {
    const Handle data(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!data) return;
    const Handle space(H5Dget_space(data.get()), H5Sclose);
    const hssize_t count = H5Sget_simple_extent_npoints(space.get());
    if (count <= 0 || count > 4096) return;
    static constexpr double kNumbers[] = {0.0,
                                          -1.0,
                                          0.5,
                                          1e38,
                                          1e300,
                                          0x1p62,
                                          -0x1p63,
                                          0x1p53,
                                          std::numeric_limits<double>::infinity(),
                                          std::numeric_limits<double>::quiet_NaN()};
    std::vector<double> values(static_cast<std::size_t>(count), pick(kNumbers));
    if (below(2) == 0) std::ranges::generate(values, [&] { return pick(kNumbers); });
    H5Dwrite(data.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }

  void put_attribute() {
    if (attributes_.empty()) return;
    const std::string name = attributes_.back();
    attributes_.pop_back();  // a second time HDF5 1.10 would crash
    const Handle form = type();
    std::array<hsize_t, 1> count{below(2) == 0 ? 1 : below(5000)};
    const Handle size = below(3) == 0
                            ? Handle(H5Screate(below(2) == 0 ? H5S_NULL : H5S_SCALAR), H5Sclose)
                            : Handle(H5Screate_simple(1, count.data(), nullptr), H5Sclose);
    H5Adelete(file_.get(), name.c_str());
    Handle(H5Acreate2(file_.get(), name.c_str(), form.get(), size.get(), H5P_DEFAULT, H5P_DEFAULT),
           H5Aclose);
  }

  static constexpr hsize_t kSizes[] = {
      0, 1, 2, 8, 64, 100'000, 1ULL << 31, 1ULL << 32, (1ULL << 32) + 1, 1ULL << 40, 1ULL << 62};
  Handle file_;
  std::minstd_rand random_;
  std::vector<std::string> names_;
  std::vector<std::string> attributes_;
};

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A sound file with a few objects changed, or none.
std::vector<char> edited(const std::vector<char>& sound, unsigned seed) {
  const InputFile file({reinterpret_cast<const std::uint8_t*>(sound.data()), sound.size()},
                       "edited.h5");
  {
    Editor editor(file.path(), seed);
    for (unsigned edits = seed % 4; edits > 0; --edits) editor.edit();
  }
  return bytes_of(file.path());
}

std::vector<char> sound_file(void (*write)(const std::string&)) {
  const InputFile file({}, "sound.h5");
  write(file.path());
  return bytes_of(file.path());
}

/// One change in four is of a sound file's objects, the others are of bytes of `data`.
std::size_t mutate(const std::vector<char>& sound, std::uint8_t* data, std::size_t size,
                   std::size_t capacity, unsigned seed) {
  if (seed % 4 == 0) {
    const std::vector<char> bytes = edited(sound, seed / 4);
    if (bytes.size() <= capacity) {
      std::memcpy(data, bytes.data(), bytes.size());
      return bytes.size();
    }
  }
  return LLVMFuzzerMutate(data, size, capacity);
}

}  // namespace

std::size_t mutate_attention(std::uint8_t* data, std::size_t size, std::size_t capacity,
                             unsigned seed) {
  static const std::vector<char> sound = sound_file(write_attention_input);
  return mutate(sound, data, size, capacity, seed);
}

std::size_t mutate_index(std::uint8_t* data, std::size_t size, std::size_t capacity,
                         unsigned seed) {
  static const std::vector<char> sound = sound_file(write_index);
  return mutate(sound, data, size, capacity, seed);
}

std::size_t mutate_checkpoint(std::uint8_t* data, std::size_t size, std::size_t capacity,
                              unsigned seed) {
  static const std::vector<char> sound = sound_file(write_checkpoint);
  return mutate(sound, data, size, capacity, seed);
}

}  // namespace cadenza::fuzz
