# SPDX-License-Identifier: Apache-2.0
"""Kernels are what their names say."""

import numpy as np
import pytest

from cadenza.sources import neutral
from cadenza.sources.kernels import COMMUNICATION, class_of, unknown

NAMES = {
    neutral.ATTENTION: (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>(y)",
        "void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64>>(Flash_bwd_params)",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>(y)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
        "cudnn_generated_fort_native_sdpa_sm80_flash_bprop_f16_knob_3",
        "fmha_v2_flash_attention_fp16_fp32_64_128_S_q_paged_kv_128_causal_sm80_kernel_nl",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<x>)",
        "void cutlass::device_kernel<flash::FlexibleFlash_ffa_fwd_sm90<x>>(y)",
        "_attn_fwd", "triton_tem_fused_flex_attention_backward_7", "_attn_bwd_dq",
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<x>>(y)",
        "aiter::fmha_fwd_hd128_bf16_causal", "sage_fwd"),
    neutral.DENSE: (
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "ampere_bf16_s16816gemm_bf16_128x256_ldg8_nn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_nt_align8>(x)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)", "triton_tem_fused_addmm_12",
        "void gemv2T_kernel_val<int, int, float>(x)",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x64",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc"),
    neutral.OPTIMIZER: (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<lambda()#1>(x)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(x)"),
    neutral.COPY: ("Memcpy HtoD (Pinned -> Device)", "Memset (Device)"),
    COMMUNICATION: (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void deep_ep::internode::dispatch<x>(y)"),
    neutral.OTHER: (
        "SubTensorOpWithScalar1d", "sage_quant_kernel", "_combined_routing_compute",
        "void moe::dev::routing::routingIndicesHistogramKernel<x>(y)",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(x)",
        "void at::native::vectorized_elementwise_kernel<4, lambda()#1>(int)",
        "triton_red_fused__to_copy_mul_native_layer_norm_3", "void at::native::reduce_kernel<512>",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<x>(y)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(x)"),
    "": ("my_own_kernel", "", "lambda", "void xyz<4>(int)"),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items()
                                            for name in names])
def test_classes(kind, name):
    assert class_of(name) == kind


def test_the_most_expensive_unknown_names():
    """Not what a processor does, nor names that are known to be nothing else."""
    names = ["mine", "mine", "dear", "void at::native::reduce_kernel<1>", "aten::add", "_attn_fwd"]
    begin = np.arange(6) * 100
    table = neutral.frame({
        "name": names, "begin_ns": begin, "end_ns": begin + [10, 20, 70, 99, 99, 99],
        "kind": ["other"] * 5 + ["attention"],
        "stream": ["stream 7"] * 4 + ["host thread 1", "stream 7"]}, 6)
    assert unknown(table).to_dict() == {"dear": 70, "mine": 30}
    assert unknown(table, most=1).to_dict() == {"dear": 70}
