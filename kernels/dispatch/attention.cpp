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

template <typename Real>
const cpu::TileKernels* tuned(const AttentionShape& shape) {
  if constexpr (kDeviceIsCuda || std::is_same_v<Real, double>) {
    return nullptr;
  } else {
    return cpu::fits(shape) ? cpu::best_kernels<Real>() : nullptr;
  }
}

template <typename Real>
[[noreturn]] void refuse(const AttentionShape& shape) {
  fail(
      ExitCode::usage,
      "attention in bfloat16 needs a processor with AVX-512 BF16 and a head_dim that is a multiple "
      "of {} up to {}; found {}, head_dim {}",
      cpu::kDimStep, cpu::kLargestDim,
      supports_bfloat16() ? "the processor" : "a processor without", shape.head_dim);
}

}  // namespace

bool supports_bfloat16() {
  return !kDeviceIsCuda && cpu::best_kernels<bfloat16>() != nullptr;
}

template <typename Real>
std::string attention_kernels(const AttentionShape& shape) {
  if (const cpu::TileKernels* table = tuned<Real>(shape)) return table->name;
  if (kDeviceIsCuda || std::is_same_v<Real, double> || cpu::best_kernels<Real>() == nullptr) {
    return "portable";
  }
  return fmt::format("portable (slow: head_dim {} is not a multiple of {} up to {})",
                     shape.head_dim, cpu::kDimStep, cpu::kLargestDim);
}

template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                       const TaskList<Real>& list) {
  check_list(shape, rotary, list);
  if constexpr (!std::is_same_v<Real, double>) {
    if (const cpu::TileKernels* table = tuned<Real>(shape)) {
      return cpu::attention_forward(*table, shape, rotary, list);
    }
  }
  if constexpr (std::is_same_v<Real, bfloat16>) {
    refuse<Real>(shape);
  } else {
    portable::attention_forward(shape, rotary, list);
  }
}

template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                        const TaskList<Real>& list) {
  check_list(shape, rotary, list);
  if constexpr (!std::is_same_v<Real, double>) {
    if (const cpu::TileKernels* table = tuned<Real>(shape)) {
      return cpu::attention_backward(*table, shape, rotary, list);
    }
  }
  if constexpr (std::is_same_v<Real, bfloat16>) {
    refuse<Real>(shape);
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
