// SPDX-License-Identifier: Apache-2.0
// Pages for the arrays of SeparateMemory, which the host can touch only while the arena is open.
#ifdef CADENZA_SEPARATE_MEMORY

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "cadenza/kernels/separate_memory.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace cadenza::kernels::separate {
namespace {

class Arena {
 public:
  /// The process's arena. It is never destroyed: Kokkos may release arrays after main().
  static Arena& shared();

  /// Returns new memory, filled with bytes 0xff: NaN in every floating-point type, -1 in signed
  /// integers.
  /// @throws std::bad_alloc  if the reserved addresses are used up
  void* take(std::size_t bytes);
  /// Takes back memory of take(bytes); another array may get it.
  void give(void* at, std::size_t bytes);

  /// Opens and closes the arena; pairs nest.
  void open();
  void close();

 private:
  Arena();

  void protect();

  std::mutex mutex_;
  char* begin_ = nullptr;
  std::size_t used_ = 0;
  int opened_ = 0;
  std::map<std::size_t, std::vector<char*>> released_;  ///< by size, for reuse
};

constexpr std::size_t kReserved = std::size_t{1} << 36;  // addresses; pages come with use
constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kGap = 64;  // least gap after an array, for the address sanitizer

/// Bytes that an array takes in the arena: few sizes, so that released memory soon fits again and
/// the arena, all pages of which are closed and opened with every kernel, stays small.
std::size_t block_of(std::size_t bytes) {
  constexpr std::size_t kLeast = 4096;
  return std::bit_ceil(std::max(bytes + kGap, kLeast));
}

/// Number of this thread's copies that have opened the arena. The first copy of a process may
/// create the arena midway: its end then has no begin.
thread_local int copies = 0;

/// Makes Kokkos' own work on arrays (filling new ones, copies) open the arena. The stream opens it
/// for its kernels (run_deferred), but not for a kernel that was started past it.
void open_for_kokkos() {
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_parallel_for_callback(
      [](const char* label, std::uint32_t, std::uint64_t* opened) {
        *opened = std::string_view(label).starts_with("Kokkos::") ? 1 : 0;
        if (*opened == 1) Arena::shared().open();
      });
  tools::set_end_parallel_for_callback([](std::uint64_t opened) {
    if (opened == 1) Arena::shared().close();
  });
  tools::set_begin_deep_copy_callback([](Kokkos_Profiling_SpaceHandle, const char*, const void*,
                                         Kokkos_Profiling_SpaceHandle, const char*, const void*,
                                         std::uint64_t) {
    separate_memory::run_deferred();
    Arena::shared().open();
    ++copies;
  });
  tools::set_end_deep_copy_callback([] {
    if (copies == 0) return;
    --copies;
    Arena::shared().close();
  });
}

}  // namespace

Arena& Arena::shared() {
  static Arena* arena = [] {
    open_for_kokkos();
    return new Arena;
  }();
  return *arena;
}

Arena::Arena() {
  void* reserved = mmap(nullptr, kReserved + kHugePage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(reserved);
  begin_ = static_cast<char*>(reserved) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(begin_, kReserved, MADV_HUGEPAGE);  // one protection per 2 MiB, not per 4 KiB
}

void* Arena::take(std::size_t bytes) {
  const std::size_t block = block_of(bytes);
  const DeviceAccess access;
  char* at = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::vector<char*>& released = released_[block];
    if (!released.empty()) {
      at = released.back();
      released.pop_back();
    } else {
      if (used_ + block > kReserved) throw std::bad_alloc();
      at = begin_ + used_;
      used_ += block;
      protect();
    }
  }
  ASAN_UNPOISON_MEMORY_REGION(at, bytes);
  std::memset(at, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(at + bytes, block - bytes);
  return at;
}

void Arena::give(void* at, std::size_t bytes) {
  const std::size_t block = block_of(bytes);
  open();
  std::memset(at, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(at, block);
  close();
  const std::lock_guard lock(mutex_);
  released_[block].push_back(static_cast<char*>(at));
}

void Arena::open() {
  const std::lock_guard lock(mutex_);
  if (++opened_ == 1) protect();
}

void Arena::close() {
  const std::lock_guard lock(mutex_);
  if (--opened_ == 0) protect();
}

void Arena::protect() {
  const std::size_t bytes = (used_ + kHugePage - 1) / kHugePage * kHugePage;
  if (bytes > 0) mprotect(begin_, bytes, opened_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

}  // namespace cadenza::kernels::separate

namespace cadenza {

using kernels::separate::Arena;

DeviceAccess::DeviceAccess() {
  Arena::shared().open();
}

DeviceAccess::~DeviceAccess() {
  Arena::shared().close();
}

void* SeparateMemory::allocate(const char* label, std::size_t bytes, std::size_t logical) const {
  void* at = Arena::shared().take(bytes);
  Kokkos::Profiling::allocateData(Kokkos::Profiling::make_space_handle(name()), label, at,
                                  logical > 0 ? logical : bytes);
  return at;
}

void SeparateMemory::deallocate(const char* label, void* at, std::size_t bytes,
                                std::size_t logical) const {
  separate_memory::run_deferred();  // waits like cudaFree
  Kokkos::Profiling::deallocateData(Kokkos::Profiling::make_space_handle(name()), label, at,
                                    logical > 0 ? logical : bytes);
  Arena::shared().give(at, bytes);
}

namespace separate_memory {
namespace {

/// The stream: all threads put work on it, and one of them at a time runs all of it.
struct Stream {
  std::mutex changes;
  std::deque<std::function<void()>> work;
  std::mutex runs;
};

/// Returns the stream. It is never destroyed: arrays may be released after main().
Stream& stream() {
  static auto* shared = new Stream;
  return *shared;
}

thread_local bool running = false;  // whether this thread is running deferred work

/// Returns the next piece of work; empty if none is left.
std::function<void()> take_next() {
  const std::lock_guard lock(stream().changes);
  if (stream().work.empty()) return {};
  std::function<void()> next = std::move(stream().work.front());
  stream().work.pop_front();
  return next;
}

/// Runs at most `most` pieces of work. @returns how many
std::int64_t run(std::int64_t most) {
  if (running) return 0;  // inside one of them
  const std::lock_guard lock(stream().runs);
  std::function<void()> next = take_next();
  if (!next) return 0;
  const DeviceAccess access;
  struct Running {
    Running() { running = true; }
    ~Running() { running = false; }
  } const now;
  std::int64_t ran = 0;
  for (; next; next = ran < most ? take_next() : nullptr) {
    next();
    ++ran;
  }
  return ran;
}

}  // namespace

void defer(std::function<void()> work) {
  if (running) return work();  // a kernel's own kernels are part of it
  const std::lock_guard lock(stream().changes);
  stream().work.push_back(std::move(work));
}

bool run_next() {
  return run(1) > 0;
}

void run_deferred() {
  run(std::numeric_limits<std::int64_t>::max());
}

}  // namespace separate_memory

}  // namespace cadenza

#endif
