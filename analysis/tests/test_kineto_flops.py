# SPDX-License-Identifier: Apache-2.0
"""FLOPs of calls whose shapes PyTorch's profiler tells, beside products counted one by one."""

import kineto_files as k
import pytest

from cadenza.sources.kineto import KINETO
from cadenza.sources.kineto.flops import Packed, flops_of
from cadenza.sources.kineto.packed import flops_of_packed

HEADS, WIDTH = 3, 8


def counted(documents, causal, queries=None, width_of_values=WIDTH):
    """Two FLOPs for each number of a key and of a value that a query of a head meets."""
    found = 0
    for keys in documents:
        for query in range(queries or keys):
            for key in range(keys):
                if key <= query or not causal:
                    found += HEADS * 2 * (WIDTH + width_of_values)
    return found


def said(name, shape, causal, value=None, **more):
    """The inputs of a call, by the schemas of PyTorch 2.2 to 2.9 and FlashAttention 2.7."""
    q, k_, v = shape, shape, value or shape
    flag, zero = str(causal), "0."
    tensors = {"": [q, k_, v], "out": [q, q, k_, v, q, [1, HEADS, 4]]}
    calls = {
        "aten::_scaled_dot_product_flash_attention": ("", [zero, flag, "False"]),
        "aten::_scaled_dot_product_flash_attention_backward":
            ("out", ["", "", "4", "4", zero, flag, "", "", ""]),
        "aten::_scaled_dot_product_flash_attention_for_cpu": ("", [zero, flag, "", ""]),
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
            ("out", [zero, flag, "", ""]),
        "aten::_scaled_dot_product_efficient_attention": ("", ["", "True", zero, flag]),
        "aten::_scaled_dot_product_efficient_attention_backward":
            ("bias", ["", "", zero, "[True, True, True, False]", flag]),
        "aten::_scaled_dot_product_cudnn_attention": ("", ["", "True", zero, flag, "False"]),
        "aten::_scaled_dot_product_cudnn_attention_backward":
            ("out", ["", "", "", "", "", "4", "4", zero, flag]),
        "flash_attn::_flash_attn_forward": ("", [zero, "0.35", flag, "-1", "-1"]),
        "flash_attn::_flash_attn_backward":
            ("out", ["", "", "", zero, "0.35", flag, "-1", "-1"]),
        "flash_attn::_flash_attn_varlen_forward":
            ("", ["", "", "LONGEST", "LONGEST", zero, "0.35", flag, "-1", "-1"]),
        "flash_attn::_flash_attn_varlen_backward":
            ("out", ["", "", "", "", "", "LONGEST", "LONGEST", zero, "0.35", flag, "-1", "-1"]),
    }
    tensors["bias"] = [q, q, k_, v, [], q, [1, HEADS, 4]]
    kind, plain = calls[name]
    plain = [str(more.get("longest", "")) if one == "LONGEST" else one for one in plain]
    dims = tensors[kind] + [[]] * len(plain)
    if "begins" in more:
        first = 3 if name.endswith("forward") else 9
        dims[first] = dims[first + 1] = [more["begins"]]
    return {"Input Dims": dims, "Concrete Inputs": [""] * len(tensors[kind]) + plain}


ATEN = ["aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ATEN)
def test_attention_of_pytorch(name, causal):
    shape = [2, HEADS, 5, WIDTH]
    forward = counted([5, 5], causal)
    assert flops_of(name, said(name, shape, causal)) == forward
    assert flops_of(name + "_backward", said(name + "_backward", shape, causal)) == 2.5 * forward


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_the_flash_attention_library(causal):
    name, forward = "flash_attn::_flash_attn", counted([5, 5], causal)
    for ending, times in (("_forward", 1), ("_backward", 2.5)):
        found = flops_of(name + ending, said(name + ending, [2, 5, HEADS, WIDTH], causal))
        assert found == times * forward


@pytest.mark.parametrize(("tokens", "documents", "longest", "known", "found"), [
    (12, 1, "", [], [12]), (12, 3, 4, [], [4, 4, 4]),  # no other lengths can be
    (12, 3, 6, [], None), (12, 3, "", [], None), (12, 5, 4, [], None),
    (12, 3, 6, [6, 2, 4], [6, 2, 4]),
    (12, 3, 6, [9, 6, 2, 4, 3], [6, 2, 4]),  # a microbatch of the step
    (12, 2, 8, [4, 8, 4], [4, 8]),  # two microbatches could be meant, of as many pairs
    (12, 2, 8, [4, 8, 5, 7], [4, 8]),  # the other two have none of 8
    (12, 2, "", [4, 8, 5, 7], None),  # of different numbers of pairs
    (12, 2, 9, [4, 8, 5, 7], None),
    (12, 3, 6, [6, 6], None), (12, 3, 6, [1, 2, 3], None)])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents(tokens, documents, longest, known, found, causal):
    name = "flash_attn::_flash_attn_varlen"
    for ending, times in (("_forward", 1), ("_backward", 2.5)):
        call = flops_of(name + ending, said(name + ending, [tokens, HEADS, WIDTH], causal,
                                            begins=documents + 1, longest=longest))
        assert isinstance(call, Packed)
        expected = times * counted(found, causal) if found else 0
        assert flops_of_packed([call, call], [3, 3], {3: known}).tolist() == [expected] * 2


def test_flops_of_a_step_are_known_of_all_calls_or_of_none():
    calls = [Packed(12, 2, -1, True, 1), Packed(9, 1, -1, True, 1)]
    assert flops_of_packed(calls, [0, 0], {0: [4, 8, 9]}).tolist() == [10 + 36, 45]
    assert flops_of_packed(calls, [0, 0], {0: [4, 7, 9]}).tolist() == [0, 0]
    assert flops_of_packed(calls, [0, 1], {0: [4, 7, 9]}).tolist() == [0, 45]


def test_packed_documents_of_a_step(tmp_path):
    made = k.Recording()
    name = "flash_attn::_flash_attn_varlen_forward"
    for step in (0, 1):
        made.range(f"ProfilerStep#{step}", 100 * step, 100)
        made.host(name, 100 * step + 10, 20, **said(name, [12, HEADS, WIDTH], True, begins=3))
        made.kernel("void flash_fwd_kernel<x>", 100 * step + 12, 100 * step + 30, 40)
    path = k.write(tmp_path / "rank5.json", k.document(made.events, rank=5))
    (rank,) = KINETO.read(path, {5: {1: [9, 3]}, 4: {0: [6, 6]}})
    attention = rank.events[rank.events["kind"] == "attention"]
    assert attention["flops"].tolist() == [0, counted([9, 3], True)]
    assert "the lengths given are not those of the attention in 1 step: its FLOPs there are not " \
        "known" in rank.cannot


def test_widths_of_keys_and_values_may_differ():
    name = ATEN[0]
    inputs = said(name, [1, HEADS, 7, WIDTH], False, value=[1, HEADS, 7, 2])
    assert flops_of(name, inputs) == counted([7], False, width_of_values=2)


def test_a_causal_mask_of_more_keys_than_queries_is_not_told():
    name = ATEN[0]
    inputs = said(name, [1, HEADS, 4, WIDTH], True)
    inputs["Input Dims"][1] = inputs["Input Dims"][2] = [1, HEADS, 9, WIDTH]
    assert flops_of(name, inputs) == 0
    inputs["Concrete Inputs"][4] = "False"
    assert flops_of(name, inputs) == counted([9], False, queries=4)


def test_a_window_is_not_told():
    name = "flash_attn::_flash_attn_forward"
    inputs = said(name, [1, 4, HEADS, WIDTH], True)
    inputs["Concrete Inputs"][6] = "128"
    assert flops_of(name, inputs) == 0


@pytest.mark.parametrize("wrong", [
    {}, {"Input Dims": []}, {"Input Dims": "x"}, {"Concrete Inputs": None},
    {"Concrete Inputs": ["", "", "", "0.", 1]}, {"Input Dims": [[1, 2, 3, 4]] * 2},
    {"Input Dims": [[1, 2, 3, "4"]] * 7}, {"Input Dims": [[1, 2, -3, 4]] * 7},
    {"Input Dims": [[2 << 28] * 4] * 7}, {"Input Dims": [[2, 3, 4]] * 7}, {"Input Dims": [[]] * 7}])
def test_what_is_no_shape_tells_nothing(wrong):
    sound = said(ATEN[0], [1, HEADS, 4, WIDTH], True)
    assert flops_of(ATEN[0], {**sound, **wrong} if wrong else {}) == 0


def test_a_call_counts_once_with_its_longest_kernel(tmp_path):
    made = k.Recording()
    made.range("ProfilerStep#0", 0, 100)
    name = ATEN[0]
    inputs = said(name, [1, HEADS, 6, WIDTH], True)
    made.host("aten::scaled_dot_product_attention", 10, 30, **inputs)
    made.host(name, 12, 20, **inputs)
    made.host("aten::_flash_attention_forward", 14, 10, **inputs)
    made.kernel("memset_something_elementwise", 15, 20, 1)
    made.kernel("void pytorch_flash::flash_fwd_kernel<x>", 18, 30, 40)
    (rank,) = KINETO.read(k.write(tmp_path / "rank0.json", k.document(made.events)))
    told = rank.events[rank.events["flops"] > 0]
    assert told[["kind", "flops"]].values.tolist() == [["attention", counted([6], True)]]
