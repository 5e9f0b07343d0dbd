# SPDX-License-Identifier: Apache-2.0
"""Dedicated attention servers on simulated clusters, beside the same number of devices without."""

import json
from fractions import Fraction

from lib import tables
from lib.command import call, words_of

GROUP = 8  # devices of a tensor group, a node
KEPT = (1 << 13, 1 << 17)  # tokens of a microbatch on a node: what memory allows, and not too few
SHARES = [Fraction(part, 8) for part in range(1, 8)]  # servers among the devices
# Devices, sequences of a step, tokens of a sequence, which is the longest document. Of the first
# ones all devices can have equal parts, of the others seven eighths of them.
CLUSTERS = [(64, 12, "128K"), (64, 3, "512K"), (128, 3, "1M"), (256, 48, "128K"),
            (256, 12, "512K"), (512, 96, "128K"), (512, 12, "1M"), (512, 3, "4M"),
            (128, 7, "128K"), (256, 14, "128K"), (512, 28, "128K"), (512, 7, "512K")]
# Name: keys of `attention`, and whether some devices are dedicated servers.
MODES = {
    "zigzag ring": ({"placement": "zigzag", "overlap": "none"}, False),
    "CAD": ({"overlap": "none"}, False),
    "CAD, ping-pong": ({"overlap": "ping_pong"}, False),
    "CAD, dedicated": ({"overlap": "none"}, True),
    "CAD, dedicated, ping-pong": ({"overlap": "ping_pong"}, True),
    "CAD, mixed": ({"overlap": "none", "mixed": "true"}, True),
    "CAD, mixed, ping-pong": ({"overlap": "ping_pong", "mixed": "true"}, True),
}


def tokens_of(length):
    return int(length[:-1]) * {"K": 1 << 10, "M": 1 << 20}[length[-1]]


def layouts(devices, sequences, length, served):
    """(data, context, servers) in all ways in which every data rank has as many sequences."""
    for share in SHARES if served else [Fraction(0)]:
        servers = int(devices * share)
        groups = (devices - servers) // GROUP
        for context in range(1, groups + 1):
            data = groups // context
            if (data * context == groups and sequences % data == 0
                    and KEPT[0] <= length // context <= KEPT[1]):
                yield data, context, servers


def settings(sequences, length, keys, layout):
    data, context, servers = layout
    attention = {**keys, **({"servers": servers} if servers else {})}
    return [f"batch.tokens={sequences * length}", f"batch.microbatch={length}",
            f"data.max_document={length}", f"parallel.data={data}", f"parallel.context={context}",
            "data.lengths={distribution: histogram, path: inputs/lengths/pretrain.json, "
            f"rule: pretrain, stretch: {length / (1 << 16):g}}}",
            *(f"attention.{key}={value}" for key, value in attention.items())]


def simulate(program, cluster, keys, layout):
    devices, sequences, length = cluster
    found = json.loads(call(words_of(
        program, ["simulate", "inputs/paper/base.yaml", "--steps", "1", "--format", "json"],
        settings(sequences, length, keys, layout))))
    assert found["ranks"] == devices and found["tokens"] == sequences * length
    return {"layout": layout, "seconds": found["seconds"], **found["memory"]}


def best(points):
    """The fastest that fits; where none does, the one that needs least."""
    fitting = [point for point in points if point["fits"]]
    if fitting:
        return min(fitting, key=lambda point: point["seconds"])
    return min(points, key=lambda point: point["largest_bytes"], default=None)


def row(where, point, reference):
    if point is None:
        return tables.row([*where, *["–"] * 5])
    data, context, servers = point["layout"]
    largest = point["largest_bytes"]
    time = f"{point['seconds']:.2f}" if point["fits"] else f"({point['seconds']:.2f})"
    return tables.row([*where, servers or "–", f"{data} × {context}", time,
                       f"{point['seconds'] / reference:.2f}",
                       f"{largest / 2**30:.0f} ({largest / point['mean_bytes']:.2f})"])


def show(program, clusters=tuple(CLUSTERS)):
    """Prints a row for every cluster and mode."""
    tables.show(*tables.head(["devices", "sequences", "placement", "servers", "data × context",
                              "step, s", "/ CAD's", "memory of the largest rank, GiB (/ mean)"]))
    for devices, sequences, name in clusters:
        cluster = (devices, sequences, tokens_of(name))
        found = {mode: best([simulate(program, cluster, keys, layout)
                             for layout in layouts(*cluster, served)])
                 for mode, (keys, served) in MODES.items()}
        reference = min(point["seconds"] for mode, point in found.items()
                        if mode in ("CAD", "CAD, ping-pong"))
        for mode, point in found.items():
            tables.show(row([devices, f"{sequences} × {name}", mode], point, reference))
