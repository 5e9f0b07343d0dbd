# SPDX-License-Identifier: Apache-2.0
"""bench/accuracy: relative L2 of attention's results, over length, head_dim and logits."""

import argparse
import itertools
import tempfile
from pathlib import Path

import torch

from accuracy_runs.reference import exact
from accuracy_runs.sides import RESULTS, cadenza, pytorch
from comparison import host

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FLOOR = {"float32": 2e-6, "bfloat16": 0.0}  # an error that is good enough whatever PyTorch's is
ROOM = 1.5  # times PyTorch's error


def parse():
    parser = argparse.ArgumentParser(
        prog="bench/accuracy", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Relative L2 of out, lse, dq, dk and dv of one causal document and one head "
        "against float64, by cadenza attend and by PyTorch's CPU flash attention. K, V and dO are "
        "unit-normal, Q is so times a factor.")
    parser.add_argument("--tokens", type=int, nargs="+", metavar="S",
                        default=[1024 << n for n in range(8)])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[32, 64, 128], metavar="D")
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 3, 9], metavar="F",
                        help="of Q: the standard deviations of the logits")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="TYPE")
    parser.add_argument("--placement", default="colocated", help="attention.placement")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="that share the document")
    parser.add_argument("--program", type=Path, default=host.ROOT / "build/release/cadenza",
                        metavar="FILE", help="is built where it is not given")
    return parser.parse_args()


def make_inputs(tokens, head_dim, factor, dtype):
    """The same document for both sides, exact in its format."""
    random = torch.Generator().manual_seed(tokens + head_dim)
    inputs = {name: torch.randn(tokens, head_dim, generator=random)
              for name in ("q", "k", "v", "dout")}
    inputs["q"] *= factor
    return {name: rows.to(DTYPES[dtype]) for name, rows in inputs.items()}


def errors(found, expected):
    return {name: ((found[name] - expected[name]).norm() / expected[name].norm()).item()
            for name in RESULTS}


def row(case, options):
    dtype, head_dim, factor, tokens = case
    inputs = make_inputs(tokens, head_dim, factor, dtype)
    expected = exact(inputs)
    ours = errors(cadenza(inputs, dtype, options), expected)
    theirs = errors(pytorch(inputs), expected)
    worst = max(ours[name] / max(FLOOR[dtype], ROOM * theirs[name]) for name in RESULTS)
    cells = [dtype, head_dim, f"{factor:g}", f"{tokens // 1024}K" if tokens >= 1024 else tokens,
             *(f"{ours[name]:.1e} / {theirs[name]:.1e}" for name in RESULTS), f"{worst:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    options = parse()
    machine = host.describe()
    print(f"{machine['date']}, {machine['processor']}, commit {machine['commit']}, PyTorch "
          f"{torch.__version__}, {options.placement} on {options.ranks} ranks\n")
    heads = ["dtype", "head_dim", "Q times", "tokens", *RESULTS, "of the bound"]
    print(f"| {' | '.join(heads)} |\n" + "| --- " * len(heads) + "|")
    cases = itertools.product(options.dtypes, options.head_dims, options.factors, options.tokens)
    with tempfile.TemporaryDirectory(prefix="cadenza-accuracy-") as folder:
        options.folder = folder
        for case in cases:
            print(row(case, options), flush=True)


if __name__ == "__main__":
    main()
