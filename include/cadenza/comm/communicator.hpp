// SPDX-License-Identifier: Apache-2.0
// Message passing as the executor uses it. Only src/comm includes mpi.h.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "cadenza/base/range.hpp"

namespace cadenza::comm {

enum class Reduction { sum, min, max };

/// Describes in a few words what a rank is doing.
using Activity = std::function<std::string()>;

/// Called at every poll of messages, in a wait or in progress(): CLOCK_MONOTONIC, ns.
using Looked = std::function<void(std::int64_t)>;

/// A message of this rank to another of the group, or to itself.
struct Send {
  std::span<const std::byte> data;
  int to = 0;
  int tag = 0;
  bool met = false;  ///< completes only after its receive is posted, whatever its size
};

/// The receive of a message; `data` has the message's size.
struct Receive {
  std::span<std::byte> data;
  int from = 0;
  int tag = 0;
};

/// Types of numbers in reductions.
enum class NumberType : std::uint8_t { float32, float64, int64, uint64 };

template <typename T>
constexpr NumberType number_type() {
  if constexpr (std::is_same_v<T, float>) return NumberType::float32;
  if constexpr (std::is_same_v<T, double>) return NumberType::float64;
  if constexpr (std::is_same_v<T, std::int64_t>) return NumberType::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return NumberType::uint64;
}

/// Calls what(T()) with the type T that `type` names.
template <typename What>
auto with_type(NumberType type, What&& what) {
  switch (type) {
    case NumberType::float32:
      return what(float());
    case NumberType::float64:
      return what(double());
    case NumberType::int64:
      return what(std::int64_t());
    case NumberType::uint64:
      break;
  }
  return what(std::uint64_t());
}

/// A span of numbers that knows their type, so that one virtual function takes all types.
template <typename Byte>
class TypedSpan {
 public:
  template <typename T>
  requires(std::is_const_v<Byte> || !std::is_const_v<T>) TypedSpan(std::span<T> numbers)
      : data_(reinterpret_cast<Byte*>(numbers.data())),
        size_(numbers.size()),
        type_(number_type<std::remove_const_t<T>>()) {}
  /// Numbers may be read where constant ones are asked for.
  template <typename Other>
  requires(std::is_const_v<Byte>&& std::is_same_v<Other, std::byte>)
      TypedSpan(const TypedSpan<Other>& numbers)
      : TypedSpan(numbers.bytes(), numbers.type()) {}
  TypedSpan(std::span<Byte> bytes, NumberType type)
      : data_(bytes.data()), size_(bytes.size() / size_of(type)), type_(type) {}

  std::size_t size() const { return size_; }  ///< in numbers
  NumberType type() const { return type_; }
  std::span<Byte> bytes() const { return {data_, size_ * size_of(type_)}; }
  /// @param T  the type that type() names
  template <typename T>
  auto as() const {
    using Number = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return std::span<Number>(reinterpret_cast<Number*>(data_), size_);
  }
  TypedSpan subspan(std::size_t first, std::size_t count) const {
    return {bytes().subspan(first * size_of(type_), count * size_of(type_)), type_};
  }

 private:
  static std::size_t size_of(NumberType type) {
    return with_type(type, [](auto number) { return sizeof(number); });
  }
  Byte* data_;
  std::size_t size_;
  NumberType type_;
};
using Numbers = TypedSpan<std::byte>;
using ConstNumbers = TypedSpan<const std::byte>;

/// Messages and collectives of a group of ranks, all of which call collectives in the same order.
/// Buffers are host memory (Communicator) or device memory (exec::DeviceCommunicator). Every
/// failure throws Error(communication).
class MessagePassing {
 public:
  virtual ~MessagePassing() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce(Numbers data, Reduction op) = 0;
  /// Concatenates `mine` of all ranks (equal sizes) into `all` on every rank.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Sums `all` over ranks; rank r gets the r-th of size() equal parts.
  virtual void reduce_scatter(ConstNumbers all, Numbers mine) = 0;

  /// Non-blocking collectives and messages. wait(channel) completes all that was posted on the
  /// channel (a small integer >= 0); the buffers must live until then. All ranks post collectives
  /// in the same order, whatever their channels; messages may be posted between them in any order.

  /// Replaces `data` by its sum over ranks.
  virtual void post_all_reduce(Numbers data, int channel) = 0;
  /// Sums `all` over ranks: counts[0] elements for rank 0, counts[1] for rank 1 and so on (0 is
  /// allowed; the same counts on all ranks). `mine` receives the counts[rank()] elements of this
  /// rank and must not overlap `all`.
  virtual void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts,
                                   Numbers mine, int channel) = 0;
  /// Concatenates `mine` of all ranks (byte_counts[rank()] bytes) into `all` on every rank. `mine`
  /// may be its own place in `all`.
  virtual void post_all_gather_v(std::span<const std::byte> mine,
                                 std::span<const std::int64_t> byte_counts,
                                 std::span<std::byte> all, int channel) = 0;
  /// Posts messages as one group (as in NCCL): none depends on the completion of another, so ranks
  /// may send to each other in one call. Messages of one pair and tag arrive in posting order.
  virtual void post(std::span<const Receive> receives, std::span<const Send> sends,
                    int channel) = 0;
  virtual void wait(int channel) = 0;
  /// Whether wait(channel) would return at once. Advances messages, as progress() does.
  virtual bool test(int channel) = 0;
};

/// A group of ranks whose buffers are host memory.
class Communicator : public MessagePassing {
 public:
  /// World rank of its first rank: identifies a group among others of its kind.
  virtual int leader() const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;

  /// Posts one message as a group.
  void post_send(std::span<const std::byte> data, int to, int tag, int channel) {
    const Send message{data, to, tag};
    post({}, {&message, 1}, channel);
  }
  void post_receive(std::span<std::byte> data, int from, int tag, int channel) {
    const Receive message{data, from, tag};
    post({&message, 1}, {}, channel);
  }
  /// Polls done() until it returns true; watched like wait().
  /// @param what  names the awaited thing in messages; a literal
  virtual void wait_until(const char* what, const std::function<bool()>& done) = 0;
  /// Advances everything that this process has under way, on all channels of all groups, and
  /// answers ranks that ask whether this one works. Cheap, completes nothing; the posting thread
  /// may call it at any time.
  virtual void progress() = 0;

  /// Limits waits in a world and all groups split from it: if no rank completes an operation for
  /// `seconds` during a wait, the wait ends with Error(communication), which names the ranks that
  /// do not answer and what the others wait for. One rank throws and so ends the job. 0, the
  /// default: no limit. A rank completes something when a wait ends and when it calls progress().
  /// Collective.
  virtual void set_timeout(double /*seconds*/) {}
  /// Sets the description that this rank sends to ranks that ask what it waits for.
  virtual void set_activity(Activity /*activity*/) {}
  /// Sets the function to call when this rank polls messages.
  virtual void set_looked(Looked /*looked*/) {}
  /// Sets work that runs at each poll of messages while this rank waits for anything. It must not
  /// wait.
  virtual void set_background(std::function<void()> /*work*/) {}

  /// Ends all processes of the job at once with `code`; one rank is enough to call it.
  virtual void abort(int code) = 0;

  /// Returns the group of the ranks with the same color, in rank order. Collective.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
};

/// Sets a rank's activity and poll callback during its lifetime.
class ActivityScope {
 public:
  ActivityScope(Communicator& world, Activity activity, Looked looked = {}) : world_(world) {
    world_.set_activity(std::move(activity));
    world_.set_looked(std::move(looked));
  }
  ~ActivityScope() {
    world_.set_activity({});
    world_.set_looked({});
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Communicator& world_;
};

/// Makes a group of one rank, without MPI.
std::unique_ptr<Communicator> make_self();

/// Makes the world of an initialised MPI.
std::unique_ptr<Communicator> make_world();

/// Name of this process' host, and its rank among the processes of `world` on that host.
struct HostPlace {
  std::string host;
  int local_rank = 0;
};
HostPlace host_place(Communicator& world);

/// Threads of a process that may call MPI.
enum class MpiThreads { main, all };

/// Initialises MPI for the lifetime of the object; one per process, around every communicator.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv, MpiThreads threads = MpiThreads::main);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

/// Broadcasts a string from `root`.
std::string broadcast(Communicator& comm, const std::string& text, int root);

/// Offset of this rank's clock to rank 0's, from `pings` exchanges, of which the one with the
/// shortest round trip counts (Cristian). global = local + offset_ns. Zero on rank 0. Collective.
struct ClockOffset {
  std::int64_t time_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t rtt_min_ns = 0;
};
ClockOffset measure_clock(Communicator& comm, int pings, std::int64_t (*now_ns)());

// --- A time limit for calls that cannot be polled: some MPI calls, the start of threads ---

/// Limits a wait of its process, during its lifetime, to `seconds` in which the process runs. After
/// them a thread prints one line about the awaited thing and ends the process with exit code 5,
/// since the waiting thread cannot be interrupted.
class Deadline {
 public:
  /// @param what     "in MPI_Comm_split for a rank that does not answer"; a literal
  /// @param seconds  0: no limit
  Deadline(const char* what, double seconds, int rank);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch(const char* what, double seconds, int rank);

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;  ///< does not call MPI
};

}  // namespace cadenza::comm
