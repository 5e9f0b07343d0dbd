// SPDX-License-Identifier: Apache-2.0
// Setup of the HDF5 library (silent, without an exit handler), its types, and its errors as one
// phrase.
#include <algorithm>
#include <cerrno>
#include <mutex>
#include <system_error>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::storage {
namespace {

struct Reason {
  std::string system;   ///< text of errno, where a driver reported one
  std::string deepest;  ///< message of the innermost function
  bool locks = false;   ///< a lock failed
  bool busy = false;    ///< another process has the lock
};

/// H5Ewalk2 callback, called from the innermost error outwards: fills a Reason.
herr_t collect(unsigned depth, const H5E_error2_t* error, void* data) {
  auto& reason = *static_cast<Reason*>(data);
  const std::string text = error->desc != nullptr ? error->desc : "";
  if (depth == 0) reason.deepest = text;
  // The POSIX driver writes: ... errno = 28, error message = 'No space left on device', ...
  static const std::string marker = "error message = '";
  const auto begin = text.find(marker);
  if (reason.system.empty() && begin != std::string::npos) {
    const auto first = begin + marker.size();
    reason.system = text.substr(first, text.find('\'', first) - first);
    reason.locks = text.find("lock file") != std::string::npos;
    reason.busy = reason.system == std::generic_category().message(EWOULDBLOCK);
  }
  return 0;
}

}  // namespace

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    H5dont_atexit();
    H5open();
  });
  // A thread-safe HDF5 has one error stack per thread.
  thread_local const herr_t silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(silent);
}

std::string last_failure() {
  Reason reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &reason);
  if (reason.locks && !reason.busy) {
    return reason.system +
           ": its file system has no locks; valid: one that has, or "
           "HDF5_USE_FILE_LOCKING=FALSE in the environment";
  }
  if (!reason.system.empty()) return reason.system;
  return reason.deepest.empty() ? "HDF5 gives no reason" : reason.deepest;
}

void refuse(const std::string& path, const std::string& what) {
  fail(ExitCode::data, "{}: {}: {}", path, what, last_failure());
}

hid_t checked(hid_t id, const std::string& path, const std::string& what) {
  if (id < 0) refuse(path, what);
  return id;
}

Handle text_type(std::size_t bytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(bytes, 1));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

template <>
hid_t native_type<float>() {
  initialise();
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t native_type<double>() {
  initialise();
  return H5T_NATIVE_DOUBLE;
}
template <>
hid_t native_type<std::int32_t>() {
  initialise();
  return H5T_NATIVE_INT32;
}
template <>
hid_t native_type<std::int64_t>() {
  initialise();
  return H5T_NATIVE_INT64;
}
template <>
hid_t native_type<std::uint64_t>() {
  initialise();
  return H5T_NATIVE_UINT64;
}

}  // namespace cadenza::storage
