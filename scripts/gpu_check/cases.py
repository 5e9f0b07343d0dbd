# SPDX-License-Identifier: Apache-2.0
"""What is run: programs, tests, experiments, shapes. Data alone."""

import json

PROGRAM, BENCH = "cadenza", "bench/bench_attention"
TESTS = [f"tests/test_{name}" for name in (
    "kernels", "attention", "model", "exec", "mpi")]
MPI, RANKS = TESTS[-1], 2
# Programs with the tests to leave to others, or to take alone: one process each, so that a kernel
# that breaks the device or never ends hides no other one. The newest kernels come last.
KERNELS = [(TESTS[0], "-*Mma.*:*Sm90.*"), (TESTS[0], "*Mma.*"), (TESTS[0], "*Sm90.*")]
MODULES = [*((name, "*") for name in TESTS[1:-1]),
           *((MPI, tests) for tests in ("Communicator.*:Together.*", "*DeviceCommunicator*:Nccl*",
                                        "Layouts.*", "Training.*"))]
UNIT_SECONDS = 120  # of each
PROGRAMS = [PROGRAM, BENCH, *TESTS]

# compute-sanitizer slows kernels down by tens: calls of some hundred tokens. What most needs to be
# looked at comes first.
SANITIZED = "tests/test_kernels"
SM90_CASES = "*Sm90.EqualsDefinition*"
MMA_CASES = "*Mma.EqualsDefinition*"
OTHER_CASES = ("Attention.EqualsDefinitionForEveryGroup:Attention.RowsWithoutKeys*:Pack*:"
               "Matmul*.EqualsDefinition")
SANITIZER = [("memcheck", SM90_CASES), ("synccheck", SM90_CASES), ("memcheck", MMA_CASES),
             ("racecheck", MMA_CASES), ("memcheck", OTHER_CASES)]
# Not racecheck of sm90: it does not see that one lane's arrival at a barrier stands for its warp.
# It reports the tiles' descriptions, and nothing where all lanes arrive (H100, 2026-11-26).
SANITIZER_SECONDS = 90  # of each

# What ncu looks at: the last backward pass' two grids, after those of a forward pass and of a
# first backward pass. Registers, shared memory and stalls are in its sections by name.
COUNTED = {"heads": 64, "kv_heads": 8, "head_dim": 128, "documents": [32768], "pass": "backward",
           "dtype": "bfloat16", "kernel": "sm90"}
COUNTED_WORDS = ["--warm-up", 1, "--repetitions", 1,
                 *(word for key, value in COUNTED.items() for word in (
                     f"--{key.replace('_', '-')}", value if key != "documents" else value[0]))]
COUNTERS = ["--target-processes", "application-only", "--csv", "--page", "details",
            "--kernel-name", "regex:run_units", "--launch-skip", "3", "--launch-count", "2",
            *(word for section in ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
              for word in ("--section", section))]

LOSSES = """\
name: losses
seed: 3
model: {layers: 2, d_model: 64, heads: 2, kv_heads: 1, ffn: 176, vocab: 512}
data:
  source: synthetic
  max_document: 512
  lengths: {distribution: lognormal, median: 128, sigma: 1.0}
batch: {tokens: 2048, microbatch: 1024}
attention: {placement: cad, block: 64, tolerance: 0.05}
optimizer: {lr: 1.0e-3, warmup: 2}
run: {steps: 5, timeout: 60}
"""
# Transport, ranks, type; and how far a loss may be from the host's in float64, relative: ten and
# more times what the host's own are (1e-15, 2e-9, 5e-5).
LOSS_CASES = [("staged", 2, "float64"), ("staged", 2, "float32"), ("staged", 2, "bfloat16"),
              ("auto", 1, "float64"), ("auto", 1, "float32"), ("auto", 1, "bfloat16")]
TOLERANCE = {"float64": 1e-11, "float32": 1e-6, "bfloat16": 5e-4}

# What attention of one document in sm90 is to reach of cuDNN's rate, at head_dim 128 and these
# lengths; and MFU of a step with it.
TARGET_LENGTHS = (16384, 32768, 65536)
TARGETS = {"forward": 0.85, "backward": 0.70}
TARGET_MFU = 0.45

MIXED = [32768, 16384, 8192, 4096, 2048, 1024, 512, 512]  # 64K tokens

# A 1.3B Llama; where programs compute on a host, a tiny one.
MODEL = {"layers": 24, "d_model": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632, "vocab": 32000}
STEP = f"""\
name: step
model: {json.dumps(MODEL)}
data: {{source: synthetic, max_document: 32768, lengths: {{distribution: list, values: {MIXED}}}}}
batch: {{tokens: {sum(MIXED)}, microbatch: {sum(MIXED)}}}
attention: {{placement: colocated, block: 128}}
optimizer: {{lr: 3.0e-4, warmup: 10}}
run: {{steps: 4, dtype: bfloat16, recompute: layer, timeout: 120}}
"""
SMALL_STEP = LOSSES
TORCH_STEP = {**MODEL, "documents": MIXED, "dtype": "bfloat16", "compiled": False,
              "recompute": True, "device": "cuda"}
# Attention's kernel, and whether there is a trace. The newest kernel comes last.
STEPS = [("mma", False), ("mma", True), ("sm90", False), ("sm90", True)]
HOST_STEPS = [("auto", False), ("auto", True)]

DEVICE_KERNELS = ["sm90", "mma"]
HOST_KERNELS = ["auto", "mma"]
# What PyTorch's scaled_dot_product_attention computes with.
PEERS = {"torch flash": {"device": "cuda", "backend": "flash"},
         "torch deterministic": {"device": "cuda", "backend": "flash", "deterministic": True},
         "torch cudnn": {"device": "cuda", "backend": "cudnn"}}

# Heads, kv_heads, head_dim, documents, queries of a task; the most telling first.
DEVICE_SHAPES = [
    *((64, 8, 128, [tokens], 0) for tokens in (32768, 8192, 16384, 65536)),
    (64, 8, 128, MIXED, 0),
    *((64, 8, 128, [16384], task) for task in (128, 512, 2048)),
    *((64, 8, 64, [tokens], 0) for tokens in (8192, 32768)),
    *((32, 8, 128, [tokens], 0) for tokens in (8192, 32768)),
    (64, 8, 64, MIXED, 0),
]
HOST_SHAPES = [(4, 2, 64, [300], 0), (4, 2, 64, [100, 60], 32)]
