// SPDX-License-Identifier: Apache-2.0
// Matrix products on the host through oneDNN: one primitive per shape, created once and kept.
#include <Kokkos_Core.hpp>

#ifndef KOKKOS_ENABLE_CUDA

#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>
#include <vector>

#include "../cpu/processor.hpp"
#include "cadenza/base/error.hpp"
#include "multiply.hpp"

namespace cadenza::kernels {
namespace {

using dnnl::memory;

/// Whether the library uses an instruction set; a set's number contains the bits of those it
/// includes.
bool uses(dnnl::cpu_isa set) {
  static const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (here & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
}

bool uses_tiles() {
  return uses(dnnl::cpu_isa::avx512_core_amx);
}

/// Whether oneDNN multiplies bfloat16 faster than float32: with tiles, and if AVX-512 BF16 is fast.
/// Where that is slow (Sapphire Rapids without AMX), the library has 0.7 of float32's rate,
/// emulated by AVX-512 0.25 of it, and with AVX2 it refuses.
bool multiplies_bfloat16() {
  return uses_tiles() || (uses(dnnl::cpu_isa::avx512_core_bf16) && cpu::fast_avx512_bfloat16());
}

/// Whether to pack B. oneDNN has two ways to multiply: batch-reduced products (brgemm), which want
/// B packed, and those of its BLAS, which pack tiles of both factors on the way. Products with many
/// rows repay packing B: the first way is then about 3 % faster. With fewer rows, or a transposed A
/// (where B is as long as the microbatch), the second is 2 to 10 % faster. With AMX tiles this
/// holds for deep products only: the first way has 1.1 to 2 times the rate of the second at depths
/// up to 1024.
bool packs(const ProductShape& shape, memory::data_type type) {
  const bool tall = shape.a_op == Transpose::no && shape.m >= 2048;
  return tall || (type == memory::data_type::bf16 && uses_tiles() && shape.k < 2048);
}

template <typename Real>
constexpr memory::data_type kType = memory::data_type::f32;
template <>
constexpr memory::data_type kType<bfloat16> = memory::data_type::bf16;

/// A row-major matrix, or the transpose of one.
memory::desc describe(Transpose op, std::int64_t rows, std::int64_t columns,
                      memory::data_type type) {
  return {{rows, columns},
          type,
          op == Transpose::yes ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

/// A product ready to run, with the memory objects whose pointers each call sets.
struct Prepared {
  dnnl::matmul product;
  memory a, b, c, scratch;
  dnnl::reorder pack;  ///< packs B into `packed`; empty if the product reads B unpacked
  memory packed;
};

/// Page-aligned memory that all products reuse.
class Scratch {
 public:
  void fit(const memory::desc& description) {
    const std::size_t size = description.get_size() + kAlignment;
    if (size > bytes_.size()) bytes_.resize(size);
  }
  void* data() {
    void* at = bytes_.data();
    std::size_t space = bytes_.size();
    return std::align(kAlignment, 1, at, space);
  }

 private:
  static constexpr std::size_t kAlignment = 4096;
  std::vector<std::byte> bytes_;
};

class Library {
 public:
  template <typename In, typename Out>
  void run(const ProductShape& shape, float alpha, const In* a, const In* b, float beta, Out* c) {
    Prepared& ready = prepare({shape, alpha, beta, kType<In>, kType<Out>});
    // oneDNN takes pointers to inputs that it does not write as void*.
    ready.a.set_data_handle(const_cast<In*>(a));
    ready.b.set_data_handle(const_cast<In*>(b));
    ready.c.set_data_handle(c);
    ready.scratch.set_data_handle(scratch_.data());
    if (ready.pack) {
      ready.packed.set_data_handle(packed_.data());
      ready.pack.execute(stream_, ready.b, ready.packed);
    }
    ready.product.execute(stream_, {{DNNL_ARG_SRC, ready.a},
                                    {DNNL_ARG_WEIGHTS, ready.pack ? ready.packed : ready.b},
                                    {DNNL_ARG_DST, ready.c},
                                    {DNNL_ARG_SCRATCHPAD, ready.scratch}});
  }

 private:
  using Key = std::tuple<ProductShape, float, float, memory::data_type, memory::data_type>;

  Prepared& prepare(const Key& key) {
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) return found->second;
    if (prepared_.size() >= kKept) prepared_.clear();
    return prepared_.emplace(key, make(key)).first->second;
  }

  Prepared make(const Key& key) {
    const auto& [shape, alpha, beta, in, out] = key;
    const memory::desc a = describe(shape.a_op, shape.m, shape.k, in);
    const memory::desc b = describe(shape.b_op, shape.k, shape.n, in);
    const memory::desc c = describe(Transpose::no, shape.m, shape.n, out);
    const memory::desc any({shape.k, shape.n}, in, memory::format_tag::any);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (alpha != 1) attributes.set_output_scales(0, {alpha});
    if (beta != 0) {
      dnnl::post_ops after;
      after.append_sum(beta);
      attributes.set_post_ops(after);
    }
    const bool pack = packs(shape, in);
    // Named, since the choice of an implementation refers to it.
    const dnnl::matmul::desc product(a, pack ? any : b, c);
    dnnl::matmul::primitive_desc chosen(product, attributes, engine_);
    if (!pack) choose_blas(chosen, product, attributes);
    scratch_.fit(chosen.scratchpad_desc());
    Prepared made{dnnl::matmul(chosen),
                  memory(a, engine_, nullptr),
                  memory(b, engine_, nullptr),
                  memory(c, engine_, nullptr),
                  memory(chosen.scratchpad_desc(), engine_, nullptr),
                  {},
                  {}};
    if (chosen.weights_desc() != b) {
      packed_.fit(chosen.weights_desc());
      made.packed = memory(chosen.weights_desc(), engine_, nullptr);
      made.pack = dnnl::reorder(made.b, made.packed);
    }
    return made;
  }

  /// Chooses the second way (BLAS), if the library offers it.
  void choose_blas(dnnl::matmul::primitive_desc& chosen, const dnnl::matmul::desc& product,
                   const dnnl::primitive_attr& attributes) const {
    dnnl::matmul::primitive_desc candidate(product, attributes, engine_);
    do {
      if (std::string_view(candidate.impl_info_str()).starts_with("gemm")) {
        chosen = candidate;
        return;
      }
    } while (candidate.next_impl());
  }

  /// Bounds what a run with ever new numbers of rows would keep.
  static constexpr std::size_t kKept = 512;

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Prepared> prepared_;
  Scratch scratch_, packed_;
};

template <typename In, typename Out>
void run(const ProductShape& shape, float alpha, const In* a, const In* b, float beta, Out* c) {
  static Library library;
  try {
    library.run(shape, alpha, a, b, beta, c);
  } catch (const dnnl::error& error) {
    fail(ExitCode::internal, "oneDNN refused the product [{}, {}] x [{}, {}]: {} (status {})",
         shape.m, shape.k, shape.k, shape.n, error.what(), static_cast<int>(error.status));
  }
}

template <typename Out>
void run_bfloat16(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                  float beta, Out* c) {
  if (multiplies_bfloat16()) {
    run(shape, alpha, a, b, beta, c);
  } else {
    multiply_widened(shape, alpha, a, b, beta, c);
  }
}

}  // namespace

void multiply(const ProductShape& shape, float alpha, const float* a, const float* b, float beta,
              float* c) {
  run(shape, alpha, a, b, beta, c);
}
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, float* c) {
  run_bfloat16(shape, alpha, a, b, beta, c);
}
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, bfloat16* c) {
  run_bfloat16(shape, alpha, a, b, beta, c);
}

}  // namespace cadenza::kernels

#endif
