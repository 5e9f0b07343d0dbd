// SPDX-License-Identifier: Apache-2.0
// wgmma of 64 rows and 64 or 128 columns, bfloat16 to float32. An instruction names all sums of a
// thread, so each width and kind of left factor needs its own statement.
#pragma once

#include <cstdint>

namespace cadenza::kernels::sm90 {

#define CADENZA_SUMS(t) "+f"(sums[t][0]), "+f"(sums[t][1]), "+f"(sums[t][2]), "+f"(sums[t][3])
#define CADENZA_SUMS_8(t)                                                         \
  CADENZA_SUMS(t), CADENZA_SUMS(t + 1), CADENZA_SUMS(t + 2), CADENZA_SUMS(t + 3), \
      CADENZA_SUMS(t + 4), CADENZA_SUMS(t + 5), CADENZA_SUMS(t + 6), CADENZA_SUMS(t + 7)

/// Computes sums = (add != 0 ? sums : 0) + left right; both factors by descriptors, depth in rows.
__device__ __forceinline__ void multiply_shared(float (&sums)[8][4], std::uint64_t left,
                                                std::uint64_t right, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : CADENZA_SUMS_8(0)
      : "l"(left), "l"(right), "r"(add));
}

/// Computes sums += left right; the left factor in registers, the right one transposed.
__device__ __forceinline__ void multiply_registers(float (&sums)[8][4], const unsigned (&left)[4],
                                                   std::uint64_t right) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n"
      "}\n"
      : CADENZA_SUMS_8(0)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

/// Computes sums = (add != 0 ? sums : 0) + left right; both factors by descriptors, depth in rows.
__device__ __forceinline__ void multiply_shared(float (&sums)[16][4], std::uint64_t left,
                                                std::uint64_t right, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;\n"
      "}\n"
      : CADENZA_SUMS_8(0), CADENZA_SUMS_8(8)
      : "l"(left), "l"(right), "r"(add));
}

/// Computes sums += left right; the left factor in registers, the right one transposed.
__device__ __forceinline__ void multiply_registers(float (&sums)[16][4], const unsigned (&left)[4],
                                                   std::uint64_t right) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n"
      "}\n"
      : CADENZA_SUMS_8(0), CADENZA_SUMS_8(8)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

#undef CADENZA_SUMS_8
#undef CADENZA_SUMS

}  // namespace cadenza::kernels::sm90
