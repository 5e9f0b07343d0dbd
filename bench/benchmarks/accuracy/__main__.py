# SPDX-License-Identifier: Apache-2.0
"""Errors of attention against float64 by length, head_dim and logits, and PyTorch's.

Relative L2 of out, lse, dq, dk and dv of one causal document and one head, by cadenza attend and by
PyTorch's CPU flash attention or, with a --kind that PyTorch has not, the definition in float32 with
factors in the type. K, V and dO are unit-normal, Q is so times a factor."""

import itertools
import tempfile
from pathlib import Path

from lib import host, options, tables

FLOOR = {"float32": 2e-6, "bfloat16": 0.0}  # an error that is good enough whatever PyTorch's is
ROOM = 1.5  # times PyTorch's error


def parse():
    parser = options.parser("accuracy", __doc__, "--program")
    parser.add_argument("--tokens", type=int, nargs="+", metavar="S",
                        default=[1024 << n for n in range(8)], help="lengths")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[32, 64, 128], metavar="D",
                        help="sizes of a head")
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 3, 9], metavar="F",
                        help="of Q: the standard deviations of the logits")
    parser.add_argument("--dtypes", nargs="+", choices=FLOOR, default=list(FLOOR), metavar="TYPE",
                        help="formats of Q, K, V and dO")
    parser.add_argument("--kind", default="full", help="attention.kind: full, dual_chunk, "
                        "vertical_slash or xattention (under the index that it chose)")
    parser.add_argument("--placement", default="colocated", help="attention.placement")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="that share the document")
    return parser.parse_args()


def cells(case, ours, theirs):
    dtype, head_dim, factor, tokens = case
    worst = max(ours[name] / max(FLOOR[dtype], ROOM * theirs[name]) for name in ours)
    return [dtype, head_dim, f"{factor:g}", f"{tokens // 1024}K" if tokens >= 1024 else tokens,
            *(f"{ours[name]:.1e} / {theirs[name]:.1e}" for name in ours), f"{worst:.2f}"]


def main():
    chosen = parse()
    import torch  # which --help does not need
    from benchmarks.accuracy import sides

    machine = host.describe()
    print(f"{machine['date']}, {machine['processor']}, commit {machine['commit']}, PyTorch "
          f"{torch.__version__}, {chosen.kind}, {chosen.placement} on {chosen.ranks} ranks\n")
    tables.show(*tables.head(["dtype", "head_dim", "Q times", "tokens", *sides.RESULTS,
                              "of the bound"]))
    cases = itertools.product(chosen.dtypes, chosen.head_dims, chosen.factors, chosen.tokens)
    with tempfile.TemporaryDirectory(prefix="cadenza-accuracy-") as folder:
        for case in cases:
            errors = sides.errors(case, chosen, Path(folder))
            tables.show(tables.row(cells(case, *errors)))


if __name__ == "__main__":
    main()
