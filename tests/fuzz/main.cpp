// SPDX-License-Identifier: Apache-2.0
// The functions that libFuzzer calls: chooses the target (--target=NAME), holds every input to its
// time, and looks at how it is refused (--explain: prints it). libFuzzer itself watches memory.
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "libfuzzer.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

const Target* target = nullptr;
bool explains = false;  ///< says of every input what became of it

/// Ends the process after kSeconds of its processor time, other processes notwithstanding.
class TimeLimit {
 public:
  TimeLimit() { set(kSeconds); }
  ~TimeLimit() { set(0); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  static void expired(int) {
    constexpr std::string_view kText = "finding: takes too much processor time\n";
    static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
    std::abort();
  }

 private:
  // One second of the program is about four with sanitizers and coverage.
  static constexpr time_t kSeconds = 4;
  static void set(time_t seconds) {
    const itimerval timer{{0, 0}, {seconds, 0}};
    setitimer(ITIMER_PROF, &timer, nullptr);
  }
};

/// An eighth of what programs usually have: nesting without bounds shows in small inputs.
void limit_stack() {
  const rlimit limit{1 << 20, RLIM_INFINITY};
  setrlimit(RLIMIT_STACK, &limit);
}

/// Of what is wrong with an input, exit codes blame the usage, the file or its numbers.
void check_refusal(const Error& error) {
  const bool right = error.code() == ExitCode::usage || error.code() == ExitCode::data ||
                     error.code() == ExitCode::numerics;
  require(right && *error.what() != 0, "refused with exit code {}: {}",
          static_cast<int>(error.code()), error.what());
  if (explains) std::fprintf(stderr, "refused: %s\n", printable(error.what()).c_str());
}

void choose_target(int argc, char** argv) {
  constexpr std::string_view kOption = "--target=";
  std::string names;
  explains = std::any_of(argv, argv + argc, [](std::string_view a) { return a == "--explain"; });
  for (const Target& one : targets()) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      if (argument.starts_with(kOption) && argument.substr(kOption.size()) == one.name) {
        target = &one;
      }
    }
    names += names.empty() ? one.name : std::string(", ") + one.name;
  }
  if (target != nullptr) return;
  std::fprintf(stderr, "error: --target=NAME is missing; valid: %s\n", names.c_str());
  std::exit(2);
}

}  // namespace
}  // namespace cadenza::fuzz

// What sanitizers are told: leaks of HDF5 are not ours, freed memory counts as used.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1";
}
extern "C" const char* __ubsan_default_options() {
  return "print_stacktrace=1";
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace cadenza::fuzz;
  choose_target(*argc, *argv);
  scratch_folder();
  limit_stack();
  std::signal(SIGPROF, TimeLimit::expired);
  if (target->start != nullptr) target->start();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cadenza::fuzz;
  const TimeLimit limit;
  try {
    target->run({data, size});
    if (explains) std::fprintf(stderr, "accepted\n");
  } catch (const cadenza::Error& error) {
    check_refusal(error);
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t capacity, unsigned seed) {
  using namespace cadenza::fuzz;
  if (target->mutate != nullptr) return target->mutate(data, size, capacity, seed);
  return LLVMFuzzerMutate(data, size, capacity);
}
