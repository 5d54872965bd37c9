#!/usr/bin/env python3
"""Writes the header of wgmma instructions: one struct a shape, PTX ISA "wgmma.mma_async".

    generate_wgmma.py OUT 64 128 ...      the values of n
"""
import sys

HEADER = '''// wgmma: one warpgroup multiplies 64 x 16 by 16 x n asynchronously, with float32 accumulation
// (sm_90a). Written by tools/generate_wgmma.py.
#pragma once

#include <cstdint>

#include "flashwok/tensor.h"

namespace flashwok::cuda::ptx {

// Before the first product, and after registers that one reads or adds to were written.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups run.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps reads and writes of accumulators on their side of a wait or a product: the compiler sees
// registers, not when they are ready.
template <int kCount>
__device__ __forceinline__ void WgmmaHold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// What led to x >= 0 comes before this point in the machine code too: otherwise ptxas moves waits up
// past arithmetic that is to run under the products waited for.
__device__ __forceinline__ void WgmmaAfter(float x) {
  asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p trap; }" ::"f"(x) : "memory");
}

// d = a b + (accumulate ? d : 0). a and b are descriptors of shared memory, or a is in registers
// laid out as Mma16816's, each warp holding 16 rows; d too, over n / 8 blocks of 8 columns.
// kTransposed: b lies in memory with n contiguous, else with k.
template <DType kType, int kN, bool kTransposed>
struct Wgmma;
'''

STRUCT = '''
template <bool kTransposed>
struct Wgmma<DType::{enum}, {n}, kTransposed> {{
  static __device__ __forceinline__ void Shared(float (&d)[{regs}], std::uint64_t a, std::uint64_t b,
                                                bool accumulate) {{
    asm volatile(
        "{{ .reg .pred p; setp.ne.b32 p, %{p_ss}, 0;"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{d}}}, "
        "%{a_ss}, %{b_ss}, p, 1, 1, 0, %{t_ss}; }}"
        : {outs}
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposed ? 1 : 0));
  }}
  static __device__ __forceinline__ void Registers(float (&d)[{regs}], const std::uint32_t (&a)[4],
                                                   std::uint64_t b, bool accumulate) {{
    asm volatile(
        "{{ .reg .pred p; setp.ne.b32 p, %{p_rs}, 0;"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{d}}}, "
        "{{%{a0}, %{a1}, %{a2}, %{a3}}}, %{b_rs}, p, 1, 1, %{t_rs}; }}"
        : {outs}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposed ? 1 : 0));
  }}
}};
'''


def struct(enum, kind, n):
    regs = n // 2
    return STRUCT.format(
        enum=enum, type=kind, n=n, regs=regs,
        d=", ".join(f"%{i}" for i in range(regs)),
        outs=", ".join(f'"+f"(d[{i}])' for i in range(regs)),
        a_ss=regs, b_ss=regs + 1, p_ss=regs + 2, t_ss=regs + 3,
        a0=regs, a1=regs + 1, a2=regs + 2, a3=regs + 3, b_rs=regs + 4, p_rs=regs + 5, t_rs=regs + 6)


def main():
    out, *sizes = sys.argv[1:]
    text = HEADER
    for n in sorted(map(int, sizes)):
        for enum, kind in (("kBFloat16", "bf16"), ("kFloat16", "f16")):
            text += struct(enum, kind, n)
    text += "\n}  // namespace flashwok::cuda::ptx\n"
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
