// SPDX-License-Identifier: Apache-2.0
// Which kernels compute a call: tuned ones where they take the shape, the portable ones elsewhere.
#include "cadenza/kernels/attention.hpp"

#include <fmt/format.h>

#include "../cpu/attention.hpp"
#include "../portable/attention.hpp"
#include "../tasks/check_list.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::kernels {
namespace {

/// Data that the tuned kernels take; they are no part of a device build.
template <typename Real>
constexpr bool kTuned = !kDeviceIsCuda && !std::is_same_v<Real, double>;

/// The fastest table of this processor for such data.
template <typename Real>
const cpu::TileKernels* best_table() {
  if constexpr (kTuned<Real>) {
    return cpu::best_kernels<Real>();
  } else {
    return nullptr;
  }
}

template <typename Real>
const cpu::TileKernels* table_for(const AttentionShape& shape) {
  return cpu::fits(shape) ? best_table<Real>() : nullptr;
}

/// bfloat16 has no portable form.
[[noreturn]] void refuse_bfloat16(const AttentionShape& shape) {
  if (!supports_bfloat16()) {
    fail(ExitCode::usage, "attention in bfloat16 needs a processor with AVX-512 BF16");
  }
  fail(ExitCode::usage,
       "attention in bfloat16: found head_dim {}; valid: a multiple of {} up to {}", shape.head_dim,
       cpu::kDimStep, cpu::kLargestDim);
}

}  // namespace

bool supports_bfloat16() {
  return best_table<bfloat16>() != nullptr;
}

template <typename Real>
std::string attention_kernels(const AttentionShape& shape) {
  if (const cpu::TileKernels* table = table_for<Real>(shape)) return table->name;
  if (best_table<Real>() == nullptr) return "portable";
  return fmt::format("portable (slow: head_dim {} is not a multiple of {} up to {})",
                     shape.head_dim, cpu::kDimStep, cpu::kLargestDim);
}

template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                       const TaskList<Real>& list) {
  check_list(shape, rotary, list);
  if constexpr (kTuned<Real>) {
    if (const cpu::TileKernels* table = table_for<Real>(shape)) {
      return cpu::attention_forward(*table, shape, rotary, list);
    }
  }
  if constexpr (std::is_same_v<Real, bfloat16>) {
    refuse_bfloat16(shape);
  } else {
    portable::attention_forward(shape, rotary, list);
  }
}

template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                        const TaskList<Real>& list) {
  check_list(shape, rotary, list);
  if constexpr (kTuned<Real>) {
    if (const cpu::TileKernels* table = table_for<Real>(shape)) {
      return cpu::attention_backward(*table, shape, rotary, list);
    }
  }
  if constexpr (std::is_same_v<Real, bfloat16>) {
    refuse_bfloat16(shape);
  } else {
    portable::attention_backward(shape, rotary, list);
  }
}

#define CADENZA_INSTANTIATE(Real)                                                           \
  template std::string attention_kernels<Real>(const AttentionShape&);                      \
  template void attention_forward<Real>(                                                    \
      const AttentionShape&, const RotaryTable<Accumulator<Real>>&, const TaskList<Real>&); \
  template void attention_backward<Real>(                                                   \
      const AttentionShape&, const RotaryTable<Accumulator<Real>>&, const TaskList<Real>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::kernels
