// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/host_store.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#ifdef KOKKOS_ENABLE_CUDA
#include "../device/check.hpp"
#endif

namespace cadenza {

#ifdef KOKKOS_ENABLE_CUDA

namespace {

void check_copies(cudaError_t status) {
  kernels::device::check(status, "copies to host memory");
}

}  // namespace

/// A stream of its own, whose copies wait for the work on the device's stream by events, and the
/// other way round.
struct HostStore::Parts {
  cudaStream_t copies = nullptr;
  cudaEvent_t ready = nullptr;
  std::map<int, cudaEvent_t> done;               ///< by slot: the end of its last copy
  std::map<std::int64_t, std::byte*> at_places;  ///< pinned
  std::int64_t bytes = 0;

  Parts() {
    check_copies(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    check_copies(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  }
  ~Parts() {
    cudaStreamSynchronize(copies);
    for (const auto& [place, memory] : at_places) cudaFreeHost(memory);
    for (const auto& [slot, event] : done) cudaEventDestroy(event);
    cudaEventDestroy(ready);
    cudaStreamDestroy(copies);
  }

  void reserve(std::int64_t more) {
    if (more <= bytes) return;
    bytes = more;
    check_copies(cudaStreamSynchronize(copies));
    for (const auto& [place, memory] : at_places) check_copies(cudaFreeHost(memory));
    at_places.clear();
  }

  void copy(std::int64_t place, int slot, const Arrays& arrays, cudaMemcpyKind kind) {
    std::byte*& memory = at_places[place];
    if (memory == nullptr) {
      check_copies(
          cudaMallocHost(reinterpret_cast<void**>(&memory), static_cast<std::size_t>(bytes)));
    }
    check_copies(cudaEventRecord(ready, Kokkos::Cuda().cuda_stream()));
    check_copies(cudaStreamWaitEvent(copies, ready));
    std::byte* host = memory;
    for (const std::span<std::byte> array : arrays) {
      const bool out = kind == cudaMemcpyDeviceToHost;
      check_copies(cudaMemcpyAsync(out ? host : array.data(), out ? array.data() : host,
                                   array.size(), kind, copies));
      host += array.size();
    }
    cudaEvent_t& event = done[slot];
    if (event == nullptr) check_copies(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check_copies(cudaEventRecord(event, copies));
  }

  void put(std::int64_t place, int slot, const Arrays& arrays) {
    copy(place, slot, arrays, cudaMemcpyDeviceToHost);
  }
  void get(std::int64_t place, int slot, const Arrays& arrays) {
    copy(place, slot, arrays, cudaMemcpyHostToDevice);
  }
  void wait(int slot) {
    const auto event = done.find(slot);
    if (event == done.end()) return;
    check_copies(cudaStreamWaitEvent(Kokkos::Cuda().cuda_stream(), event->second));
    count_work();
  }
};

#else

/// Copies run when they are waited for, as late as they may: one whose memory is used too early
/// gives wrong numbers, as on a device that is slow.
struct HostStore::Parts {
  struct Copy {
    std::int64_t place = 0;
    int slot = 0;
    Arrays arrays;
    bool out = false;
  };
  std::deque<Copy> pending;
  std::int64_t bytes = 0;
  int file = -1;
  std::string folder;

  ~Parts() {
    if (file >= 0) close(file);
  }

  void reserve(std::int64_t more) {
    bytes = std::max(bytes, more);
    if (file >= 0) return;
    std::error_code none;
    folder = std::filesystem::temp_directory_path(none).string();
    if (none) {
      const char* const named = std::getenv("TMPDIR");
      folder = named == nullptr ? "/tmp" : named;
      errno = none.value();
      complain("made");
    }
    std::string name = folder + "/cadenza-offload-XXXXXX";
    file = mkstemp(name.data());
    if (file < 0) complain("made");
    unlink(name.c_str());
  }

  [[noreturn]] void complain(const char* what) const {
    fail(ExitCode::data, "run.offload: a file in {} (TMPDIR) cannot be {}: {}", folder, what,
         std::strerror(errno));
  }

  void put(std::int64_t place, int slot, const Arrays& arrays) {
    pending.push_back({place, slot, arrays, true});
  }
  void get(std::int64_t place, int slot, const Arrays& arrays) {
    pending.push_back({place, slot, arrays, false});
  }

  void wait(int slot) {
    const auto last = std::find_if(pending.rbegin(), pending.rend(),
                                   [&](const Copy& copy) { return copy.slot == slot; });
    for (auto left = pending.rend() - last; left > 0; --left) {
      run(pending.front());
      pending.pop_front();
    }
  }

  void run(const Copy& copy) const {
    off_t offset = copy.place * bytes;
    for (const std::span<std::byte> array : copy.arrays) {
      copy.out ? write_array(array, offset) : read_array(array, offset);
      offset += static_cast<off_t>(array.size());
    }
  }

  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using OnDevice = Kokkos::View<std::byte*, DeviceMemory, Unmanaged>;
  static HostArray<std::byte> mirror(std::span<std::byte> array) {
    return Kokkos::create_mirror_view(OnDevice(array.data(), array.size()));
  }

  void write_array(std::span<std::byte> array, off_t offset) const {
    const HostArray<std::byte> host = mirror(array);
    copy_and_wait(host, OnDevice(array.data(), array.size()));
    move_all(host, offset, pwrite, "written");
  }

  void read_array(std::span<std::byte> array, off_t offset) const {
    const HostArray<std::byte> host = mirror(array);
    fence();
    move_all(host, offset, pread, "read");
    copy_and_wait(OnDevice(array.data(), array.size()), host);
  }

  /// Calls pwrite or pread until all is moved.
  template <typename Call>
  void move_all(const HostArray<std::byte>& host, off_t offset, Call call, const char* what) const {
    for (std::size_t done = 0; done < host.size();) {
      const ssize_t count =
          call(file, host.data() + done, host.size() - done, offset + static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) complain(what);
      done += static_cast<std::size_t>(count);
    }
  }
};

#endif

HostStore::HostStore() : parts_(std::make_unique<Parts>()) {}
HostStore::~HostStore() {
  fence();  // the stream may still use arrays and memory
}

void HostStore::reserve(std::int64_t bytes) {
  parts_->reserve(bytes);
}
void HostStore::put(std::int64_t place, int slot, const Arrays& arrays) {
  parts_->put(place, slot, arrays);
}
void HostStore::get(std::int64_t place, int slot, const Arrays& arrays) {
  parts_->get(place, slot, arrays);
}
void HostStore::wait(int slot) {
  parts_->wait(slot);
}

}  // namespace cadenza
