// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

constexpr double kInitialDeviation = 0.02;  // Hugging Face's initializer_range

/// Allocates weights, gradients and what the optimizer keeps, all zero.
template <typename Real>
void allocate_arrays(Parameters<Real>& p, bool gradients, MemoryLedger& ledger) {
  using Sum = Accumulator<Real>;
  const std::int64_t count = p.table.elements;
  std::int64_t owned = 0;
  for (const Range& range : p.owned) owned += range.size();
  p.weights = allocate<Real>(ledger, MemoryKind::parameters, "weights", count);
  if (!std::is_same_v<Real, Sum>) {
    p.masters = allocate<Sum>(ledger, MemoryKind::optimizer, "master_weights", owned);
  }
  p.gradients = allocate<Sum>(ledger, MemoryKind::gradients, "gradients", gradients ? count : 0);
  p.first_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "first_moment", owned);
  p.second_moment = allocate<Sum>(ledger, MemoryKind::optimizer, "second_moment", owned);
}

/// Where values go: the weights, and their masters unless null.
template <typename Real>
struct Target {
  Real* weights;
  Accumulator<Real>* masters;

  KOKKOS_FUNCTION void set(std::int64_t i, Accumulator<Real> value) const {
    narrow(value, weights[i]);
    if (masters != nullptr) masters[i] = value;
  }
};

/// Calls action(elements, masters) for the parts of `elements` that the rank owns and for those
/// that it does not, in order; masters are null where there are none.
template <typename Real, typename Action>
void for_owned_and_others(const Parameters<Real>& p, Range elements, Action action) {
  if (!std::is_same_v<Real, Accumulator<Real>>) {
    Accumulator<Real>* masters = p.masters.data();
    for (const Range& range : p.owned) {
      const Range mine = intersect(range, elements);
      if (!mine.empty()) {
        if (mine.begin > elements.begin) action(Range{elements.begin, mine.begin}, nullptr);
        action(mine, masters + mine.begin - range.begin);
        elements.begin = mine.end;
      }
      masters += range.size();
    }
  }
  if (!elements.empty()) action(elements, nullptr);
}

/// Initialises elements of a block: those of a matrix by their index in the whole, of a bias to
/// zeros, of a norm to ones.
/// @param elements  of the block
/// @param to  where the first of them goes
template <typename Real>
void initialise(const ParameterInfo& info, std::uint64_t seed, Range elements,
                const Target<Real>& to) {
  using Sum = Accumulator<Real>;
  if (!info.is_matrix()) {
    const Sum value = info.replicated ? 1 : 0;  // norms are, biases are not
    for_elements(
        "initialise_vector", elements.size(),
        KOKKOS_LAMBDA(const std::int64_t i) { to.set(i, value); });
    return;
  }
  const std::uint64_t stream = Hasher().add(info.name).value();
  const std::int64_t columns = info.columns, whole_columns = info.whole_columns;
  const std::int64_t corner = info.row_begin * whole_columns + info.column_begin;
  const std::int64_t first = elements.begin;
  for_elements(
      "initialise_matrix", elements.size(), KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = (first + i) / columns, column = (first + i) % columns;
        const std::int64_t index = corner + row * whole_columns + column;
        const double value =
            kInitialDeviation * random_normal(seed, stream, static_cast<std::uint64_t>(index));
        to.set(i, static_cast<Sum>(value));
      });
}

}  // namespace

template <typename Real>
Parameters<Real> make_parameters(const config::Model& model, const ModelPart& part,
                                 std::uint64_t seed, MemoryLedger& ledger,
                                 const std::vector<Range>& owned, bool gradients) {
  using Sum = Accumulator<Real>;
  Parameters<Real> parameters;
  parameters.table = make_parameter_table(model, part);
  parameters.owned = owned;
  allocate_arrays(parameters, gradients, ledger);
  for (const ParameterInfo& info : parameters.table.entries) {
    for_owned_and_others(
        parameters, {info.offset, info.offset + info.count()}, [&](Range elements, Sum* masters) {
          initialise<Real>(info, seed, {elements.begin - info.offset, elements.end - info.offset},
                           {parameters.weights.data() + elements.begin, masters});
        });
  }
  return parameters;
}

template <typename Real>
void set_weights(Parameters<Real>& parameters, Range elements, const Accumulator<Real>* values) {
  using Sum = Accumulator<Real>;
  const auto count = static_cast<std::size_t>(elements.size());
  std::vector<Real> rounded(count);
  for (std::size_t i = 0; i < count; ++i) narrow(values[i], rounded[i]);
  copy_in<Real>(rounded, parameters.weights.data() + elements.begin);
  for_owned_and_others(parameters, elements, [&](Range part, Sum* masters) {
    if (masters == nullptr) return;
    copy_in(std::span<const Sum>(values + part.begin - elements.begin,
                                 static_cast<std::size_t>(part.size())),
            masters);
  });
}

template <typename Sum>
void place_block(const ParameterInfo& info, const Sum* block, Sum* whole) {
  if (!info.is_matrix()) {
    std::copy_n(block, info.rows, whole + info.row_begin);
    return;
  }
  for (std::int64_t row = 0; row < info.rows; ++row) {
    std::copy_n(block + row * info.columns, info.columns,
                whole + (info.row_begin + row) * info.whole_columns + info.column_begin);
  }
}

#define CADENZA_INSTANTIATE(Real)                                                                  \
  template Parameters<Real> make_parameters(const config::Model&, const ModelPart&, std::uint64_t, \
                                            MemoryLedger&, const std::vector<Range>&, bool);       \
  template void set_weights(Parameters<Real>&, Range, const Accumulator<Real>*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE
template void place_block(const ParameterInfo&, const float*, float*);
template void place_block(const ParameterInfo&, const double*, double*);

}  // namespace cadenza::model
