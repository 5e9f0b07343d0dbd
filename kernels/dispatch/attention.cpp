// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels of a call: tuned ones if they support the shape, otherwise portable ones.
#include "cadenza/kernels/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "../cpu/attention.hpp"
#include "../mma/attention.hpp"
#include "../mma/cuda_kernels.hpp"
#include "../portable/attention.hpp"
#include "../sm90/attention.hpp"
#include "../sm90/cuda_kernels.hpp"
#include "../tasks/check_list.hpp"
#include "../tasks/sparse_rows.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/task.hpp"

namespace cadenza::kernels {
namespace {

/// Whether the tuned host kernels take the type; device builds do not contain them.
template <typename Real>
constexpr bool kTuned = !kDeviceIsCuda && !std::is_same_v<Real, double>;

/// Whether a device's tensor cores take the type.
template <typename Real>
constexpr bool kMma = kDeviceIsCuda&& std::is_same_v<Real, bfloat16>;

template <typename Real>
const std::vector<cpu::NamedKernels>& tuned_tables() {
  if constexpr (kTuned<Real>) {
    return cpu::tables<Real>();
  } else {
    static const std::vector<cpu::NamedKernels> none;
    return none;
  }
}

template <typename Real>
constexpr const char* kType = "float32";
template <>
constexpr const char* kType<double> = "float64";
template <>
constexpr const char* kType<bfloat16> = "bfloat16";

/// Whether portable kernels take the type: not bfloat16.
template <typename Real>
constexpr bool kPortable = !std::is_same_v<Real, bfloat16>;

template <typename Real>
[[noreturn]] void refuse_kernel(AttentionKernel kernel) {
  std::vector<std::string_view> valid;
  for (const AttentionKernel here : available_attention_kernels<Real>()) {
    valid.push_back(word(here));
  }
  fail(ExitCode::usage, "attention.kernel: found {}; valid for {} here: auto, {}", word(kernel),
       kType<Real>, fmt::join(valid, ", "));
}

// Names of the kernels of all processors.
constexpr AttentionKernel kPortableKernel[] = {AttentionKernel::portable};
constexpr AttentionKernel kFloatKernels[] = {AttentionKernel::avx512, AttentionKernel::avx2,
                                             AttentionKernel::portable};
constexpr AttentionKernel kBfloat16Kernels[] = {AttentionKernel::amx, AttentionKernel::avx512_bf16,
                                                AttentionKernel::avx512, AttentionKernel::avx2};

/// Returns those that compute with a type.
template <typename Real>
std::span<const AttentionKernel> host_kernels() {
  if constexpr (std::is_same_v<Real, float>) return kFloatKernels;
  if constexpr (std::is_same_v<Real, bfloat16>) return kBfloat16Kernels;
  return kPortableKernel;
}

/// Explains why no processor computes the shape; empty: some do.
template <typename Real>
std::string host_refusal(const AttentionShape& shape, AttentionKernel kernel,
                         std::span<const AttentionKernel> kernels) {
  const bool any = kernel == AttentionKernel::automatic;
  if (!any && std::ranges::find(kernels, kernel) == kernels.end()) {
    std::vector<std::string_view> valid;
    for (const AttentionKernel each : kernels) valid.push_back(word(each));
    return fmt::format("attention.kernel: found {}; valid for {}: auto, {}", word(kernel),
                       kType<Real>, fmt::join(valid, ", "));
  }
  const bool tuned = any ? !kPortable<Real> : kernel != AttentionKernel::portable;
  if (!tuned || cpu::fits(shape)) return "";
  return fmt::format(
      "{}: found head_dim {}; valid: a multiple of {} up to {}",
      any ? "attention in bfloat16" : fmt::format("attention.kernel: {}", word(kernel)),
      shape.head_dim, cpu::kDimStep, cpu::kLargestDim);
}

/// Explains why the processor's best kernels are not used; empty: they are.
template <typename Real>
std::string second_choice() {
  if constexpr (kTuned<Real> && !kPortable<Real>) {
    if (cpu::amx_was_refused()) return " (the operating system refuses AMX)";
  }
  return "";
}

/// Returns the table that computes the shape; null: the portable kernels.
template <typename Real>
const cpu::NamedKernels* table_for(const AttentionShape& shape, AttentionKernel kernel) {
  const bool any = kernel == AttentionKernel::automatic;
  if (kPortable<Real> && kernel == AttentionKernel::portable) return nullptr;
  for (const cpu::NamedKernels& each : tuned_tables<Real>()) {
    if (!any && each.name != kernel) continue;
    if (cpu::fits(shape)) return &each;
    const std::string refusal = host_refusal<Real>(shape, kernel, host_kernels<Real>());
    if (!refusal.empty()) fail(ExitCode::usage, "{}", refusal);
    return nullptr;
  }
  if (!any) refuse_kernel<Real>(kernel);
  if (!kPortable<Real>) fail(ExitCode::usage, "attention in bfloat16 needs a processor with AVX2");
  return nullptr;
}

/// Kernels that compute bfloat16 on devices.
struct DeviceKernels {
  AttentionKernel name;
  bool (*fits)(const AttentionShape&);
  std::string head_dims;  ///< supported head_dims
};

/// Returns the kernels in the order of preference.
const std::vector<DeviceKernels>& device_kernels() {
  static const std::vector<DeviceKernels> all = {
      {AttentionKernel::sm90, sm90::fits, fmt::format("{}", fmt::join(sm90::kHeadDims, ", "))},
      {AttentionKernel::mma, mma::fits, fmt::format("{}", fmt::join(mma::kHeadDims, ", "))},
  };
  return all;
}

/// The kernel that the shape names, or the first that supports it.
struct DeviceChoice {
  AttentionKernel name = AttentionKernel::mma;
  std::string refusal;  ///< empty: none
};

/// @param here  whether a kernel is available
template <typename Here>
DeviceChoice device_choice(const AttentionShape& shape, AttentionKernel kernel, const Here& here) {
  const bool any = kernel == AttentionKernel::automatic;
  DeviceChoice choice;
  choice.refusal =
      fmt::format("attention.kernel: found {}; a device computes bfloat16 by auto", word(kernel));
  for (const DeviceKernels& each : device_kernels()) {
    if (!any) choice.refusal += fmt::format(", {}", word(each.name));
    if (any ? !here(each.name) : each.name != kernel) continue;
    if (each.fits(shape)) return {each.name, ""};
    const std::string what =
        any ? "attention in bfloat16" : fmt::format("attention.kernel: {}", word(each.name));
    choice = {each.name, fmt::format("{} on a device: found head_dim {}; valid: {}", what,
                                     shape.head_dim, each.head_dims)};
    if (!any) return choice;
  }
  return choice;
}

/// Returns the kernel for this device. A named kernel must be available on it.
AttentionKernel device_kernel(const AttentionShape& shape, AttentionKernel kernel) {
  const auto all = available_attention_kernels<bfloat16>();
  const auto here = [&](AttentionKernel each) { return std::ranges::find(all, each) != all.end(); };
  if (kernel != AttentionKernel::automatic && !here(kernel)) {
    refuse_kernel<bfloat16>(kernel);
  }
  const DeviceChoice choice = device_choice(shape, kernel, here);
  if (!choice.refusal.empty()) fail(ExitCode::usage, "{}", choice.refusal);
  return choice.name;
}

template <typename Real>
void dense_pass(Pass pass, const AttentionShape& shape,
                const RotaryTable<Accumulator<Real>>& rotary, const TaskList<Real>& list) {
  if constexpr (kMma<Real>) {
    const bool is_sm90 = device_kernel(shape, list.kernel) == AttentionKernel::sm90;
    return (is_sm90 ? sm90::attention : mma::attention)(pass, shape, rotary, list);
  }
  const cpu::NamedKernels* tuned = table_for<Real>(shape, list.kernel);
  if constexpr (kTuned<Real>) {
    if (tuned != nullptr) {
      return enqueue(
          [pass](const auto&... all) {
            pass == Pass::forward ? cpu::attention_forward(all...)
                                  : cpu::attention_backward(all...);
          },
          *tuned->table, shape, rotary, list);
    }
  }
  if constexpr (kPortable<Real>) {
    pass == Pass::forward ? portable::attention_forward(shape, rotary, list)
                          : portable::attention_backward(shape, rotary, list);
  }
}

/// Runs documents without a pattern as usual; the others by kernels that support patterns (on a
/// device `mma`, whichever kernel is chosen), or split into dense tasks.
template <typename Real>
void sparse_pass(Pass pass, const AttentionShape& shape,
                 const RotaryTable<Accumulator<Real>>& rotary, const TaskList<Real>& list) {
  const SplitTasks<Real> split = split_tasks(list);
  if (!split.dense.tasks.empty()) dense_pass(pass, shape, rotary, split.dense);
  if (split.sparse.tasks.empty()) return;
  if constexpr (kTuned<Real>) {
    if (const cpu::NamedKernels* tuned = table_for<Real>(shape, list.kernel)) {
      return enqueue(
          [pass](const auto&... all) {
            pass == Pass::forward ? cpu::sparse_forward(all...) : cpu::sparse_backward(all...);
          },
          *tuned->table, shape, rotary, split.sparse);
    }
  }
  if constexpr (kMma<Real>) {
    static_cast<void>(device_kernel(shape, list.kernel));  // refuses what it refuses of dense tasks
    return mma::sparse_attention(pass, shape, rotary, split.sparse);
  }
  if constexpr (kPortable<Real>) dense_pass(pass, shape, rotary, expanded(split.sparse));
}

template <typename Real>
void run_pass(Pass pass, const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
              const TaskList<Real>& list) {
  check_list(shape, rotary, list);
  if (list.index != nullptr) return sparse_pass(pass, shape, rotary, list);
  dense_pass(pass, shape, rotary, list);
}

}  // namespace

bool supports_bfloat16() {
  if constexpr (kMma<bfloat16>) return mma::is_available();
  return !tuned_tables<bfloat16>().empty();
}

template <typename Real>
std::string refused_everywhere(const AttentionShape& shape, AttentionKernel kernel,
                               bool on_device) {
  if (!on_device) return host_refusal<Real>(shape, kernel, host_kernels<Real>());
  if constexpr (!kPortable<Real>) {
    return device_choice(shape, kernel, [](AttentionKernel) { return true; }).refusal;
  }
  return host_refusal<Real>(shape, kernel, kPortableKernel);
}

template <typename Real>
std::vector<AttentionKernel> available_attention_kernels() {
  std::vector<AttentionKernel> here;
  for (const cpu::NamedKernels& each : tuned_tables<Real>()) here.push_back(each.name);
  if constexpr (kMma<Real>) {
    if (sm90::is_available()) here.push_back(AttentionKernel::sm90);
    if (mma::is_available()) here.push_back(AttentionKernel::mma);
  }
  if (kPortable<Real>) here.push_back(AttentionKernel::portable);
  return here;
}

template <typename Real>
AttentionKernel attention_kernel(const AttentionShape& shape, AttentionKernel kernel) {
  if constexpr (kMma<Real>) {
    return device_kernel(shape, kernel);
  }
  const cpu::NamedKernels* tuned = table_for<Real>(shape, kernel);
  return tuned != nullptr ? tuned->name : AttentionKernel::portable;
}

template <typename Real>
std::string describe_attention_kernel(const AttentionShape& shape, AttentionKernel kernel) {
  if constexpr (kMma<Real>) {
    return std::string(word(device_kernel(shape, kernel)));
  }
  if (const cpu::NamedKernels* tuned = table_for<Real>(shape, kernel)) {
    return tuned->table->name + second_choice<Real>();
  }
  if (kernel == AttentionKernel::portable || tuned_tables<Real>().empty()) return "portable";
  return fmt::format("portable (slow: head_dim {} is not a multiple of {} up to {})",
                     shape.head_dim, cpu::kDimStep, cpu::kLargestDim);
}

template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                       const TaskList<Real>& list) {
  run_pass(Pass::forward, shape, rotary, list);
}

template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                        const TaskList<Real>& list) {
  run_pass(Pass::backward, shape, rotary, list);
}

#define CADENZA_INSTANTIATE(Real)                                                               \
  template std::vector<AttentionKernel> available_attention_kernels<Real>();                    \
  template std::string refused_everywhere<Real>(const AttentionShape&, AttentionKernel, bool);  \
  template AttentionKernel attention_kernel<Real>(const AttentionShape&, AttentionKernel);      \
  template std::string describe_attention_kernel<Real>(const AttentionShape&, AttentionKernel); \
  template void attention_forward<Real>(                                                        \
      const AttentionShape&, const RotaryTable<Accumulator<Real>>&, const TaskList<Real>&);     \
  template void attention_backward<Real>(                                                       \
      const AttentionShape&, const RotaryTable<Accumulator<Real>>&, const TaskList<Real>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::kernels
