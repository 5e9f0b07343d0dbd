// SPDX-License-Identifier: Apache-2.0
// GCC's coverage for libFuzzer: GCC calls __sanitizer_cov_trace_pc in every basic block, libFuzzer
// looks at the counters of the section below. The linker leads the calls here (--wrap), because
// libFuzzer has a function of that name which only complains. It has none for comparisons of
// floating-point numbers. This file is not instrumented.
#include <cstdint>

extern "C" char __executable_start;  // the linker's

namespace {

constexpr std::uintptr_t kCounters = 1 << 16;
__attribute__((used, section("__libfuzzer_extra_counters"))) std::uint8_t counters[kCounters];

}  // namespace

extern "C" void __wrap___sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                     reinterpret_cast<std::uintptr_t>(&__executable_start);
  ++counters[(place ^ place >> 16) % kCounters];
}

extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}
