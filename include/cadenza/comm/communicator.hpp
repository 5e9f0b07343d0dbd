// SPDX-License-Identifier: Apache-2.0
// Message passing as the executor sees it. Nothing outside comm/ and program start-up knows MPI.
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

/// What a rank is at, in a few words.
using Activity = std::function<std::string()>;

/// Told of every look at messages, of a wait or of progress(): CLOCK_MONOTONIC, ns.
using Looked = std::function<void(std::int64_t)>;

/// A message of this rank to another of the group, or to itself.
struct Send {
  std::span<const std::byte> data;
  int to = 0;
  int tag = 0;
  bool met = false;  ///< complete only when its receive is posted, whatever its size
};

/// The other end of it: `data` has its size.
struct Receive {
  std::span<std::byte> data;
  int from = 0;
  int tag = 0;
};

/// Types of the numbers that reductions add up.
enum class NumberType : std::uint8_t { float32, float64, int64, uint64 };

template <typename T>
constexpr NumberType number_type() {
  if constexpr (std::is_same_v<T, float>) return NumberType::float32;
  if constexpr (std::is_same_v<T, double>) return NumberType::float64;
  if constexpr (std::is_same_v<T, std::int64_t>) return NumberType::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return NumberType::uint64;
}

/// Calls what(T()) for the type T that `type` names.
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

/// A span of numbers that says their type, so that a virtual function takes all types.
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

  std::size_t size() const { return size_; }  ///< numbers
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

/// Messages and collectives of a group of ranks. Collectives are called by all of them in the same
/// order. Buffers are host memory (Communicator) or device memory (exec::DeviceCommunicator). Every
/// failure is Error(communication).
class MessagePassing {
 public:
  virtual ~MessagePassing() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce(Numbers data, Reduction op) = 0;
  /// Every rank's `mine` (equal sizes) one after another, on every rank.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// The sum over ranks of `all`, of which rank r gets the r-th of size() equal parts.
  virtual void reduce_scatter(ConstNumbers all, Numbers mine) = 0;

  /// Non-blocking collectives and messages. What is posted on a channel (a small integer >= 0) is
  /// completed together by wait(channel); its buffers live until then. All ranks post collectives
  /// in the same order, whatever their channels; messages may come between them in any order.

  /// `data` becomes its sum over ranks.
  virtual void post_all_reduce(Numbers data, int channel) = 0;
  /// The sum over ranks of `all`, which is counts[0] elements for rank 0, counts[1] for rank 1 and
  /// so on (0 is allowed; the same counts everywhere); `mine` are the counts[rank()] of this rank,
  /// elsewhere in memory.
  virtual void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts,
                                   Numbers mine, int channel) = 0;
  /// Every rank's `mine` (byte_counts[rank()] bytes) one after another, on every rank. `mine` may
  /// be its own place in `all`.
  virtual void post_all_gather_v(std::span<const std::byte> mine,
                                 std::span<const std::int64_t> byte_counts,
                                 std::span<std::byte> all, int channel) = 0;
  /// Posts messages as one group: none of them needs another of the group to be complete first, so
  /// ranks may send to each other in one call (what NCCL calls a group). Messages of one pair and
  /// tag arrive in the order in which they were posted.
  virtual void post(std::span<const Receive> receives, std::span<const Send> sends,
                    int channel) = 0;
  virtual void wait(int channel) = 0;
  /// True when wait(channel) would return at once. Moves messages on, as progress() does.
  virtual bool test(int channel) = 0;
};

/// A group of ranks whose buffers are host memory.
class Communicator : public MessagePassing {
 public:
  /// World rank of its first rank: what names a group among others of its kind.
  virtual int leader() const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;

  /// A group of one message.
  void post_send(std::span<const std::byte> data, int to, int tag, int channel) {
    const Send message{data, to, tag};
    post({}, {&message, 1}, channel);
  }
  void post_receive(std::span<std::byte> data, int from, int tag, int channel) {
    const Receive message{data, from, tag};
    post({&message, 1}, {}, channel);
  }
  /// Returns when done(), which is asked again and again, says true; watched as wait() is.
  /// @param what  is waited for, as messages name it; a literal
  virtual void wait_until(const char* what, const std::function<bool()>& done) = 0;
  /// Moves on what this process has under way, on all channels of all groups, and tells who asks
  /// that this rank is at work. Cheap, completes nothing; called at any time by the thread that
  /// posts.
  virtual void progress() = 0;

  /// Of a world and all that is split from it: a wait in which no rank completes an operation for
  /// `seconds` ends with Error(communication), which names the ranks that do not answer and what
  /// the others wait for. On one rank, which ends the job; 0: waits are not limited, which is so
  /// from the beginning. A rank completes something when it waits no longer and when it calls
  /// progress(). Collective.
  virtual void set_timeout(double /*seconds*/) {}
  /// What this rank says of itself when others want to know what it waits for.
  virtual void set_activity(Activity /*activity*/) {}
  /// Who wants to know when this rank looks at its messages.
  virtual void set_looked(Looked /*looked*/) {}
  /// What goes on while this rank waits, for whomever: called at each look at messages. It must not
  /// wait.
  virtual void set_background(std::function<void()> /*work*/) {}

  /// Ends all processes of the job at once with `code`, from one rank alone.
  virtual void abort(int code) = 0;

  /// Ranks with the same color, in rank order.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
};

/// Says what a rank is at, and is told when it looks at messages, as long as it lives.
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

/// A group of one: no MPI needed.
std::unique_ptr<Communicator> make_self();

/// The world of an initialised MPI.
std::unique_ptr<Communicator> make_world();

/// Rank that the launcher (mpirun, srun) gave this process, before MPI is up; 0 without a launcher.
/// Decides only who prints, and how.
int launcher_rank();
bool has_launcher();

/// Name of this process' host, and its rank among the processes of `world` on that host.
struct HostPlace {
  std::string host;
  int local_rank = 0;
};
HostPlace host_place(Communicator& world);

/// Threads of a process that may call MPI.
enum class MpiThreads { main, all };

/// MPI for the lifetime of the object; one per process, around every communicator.
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv, MpiThreads threads = MpiThreads::main);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

/// Broadcast of a string from `root`.
std::string broadcast(Communicator& comm, const std::string& text, int root);

/// Clock of this rank against rank 0's: `pings` exchanges, the one with the shortest round trip
/// counts (Cristian). global = local + offset_ns. Zero on rank 0. Collective.
struct ClockOffset {
  std::int64_t time_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t rtt_min_ns = 0;
};
ClockOffset measure_clock(Communicator& comm, int pings, std::int64_t (*now_ns)());

// A bound in time for what has no form that can be polled: some calls of MPI, the start of threads.

/// While it lives, its process must not wait for more than `seconds` of the time in which it runs:
/// else a thread says in one line what it waits for and ends the process with exit code 5, since
/// the thread that waits cannot be called back.
class Deadline {
 public:
  /// @param what     "in MPI_Comm_split for a rank that does not answer"; a literal
  /// @param seconds  0: for ever
  Deadline(const char* what, double seconds, int rank);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch(const char* what, double seconds, int rank);

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;  ///< makes no calls of MPI
};

}  // namespace cadenza::comm
