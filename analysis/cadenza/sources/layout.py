# SPDX-License-Identifier: Apache-2.0
"""Which parallel dimension a process group belongs to, and the place of each rank in the layout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from cadenza.errors import UsageError
from cadenza.sources.neutral import COLLECTIVE, DIMENSIONS
from cadenza.words import counted

# Words of groups' names and descriptions, as Megatron-LM, DeepSpeed and PyTorch's device meshes use
# them; the first that is found counts.
_WORDS = (
    ("pipeline", r"pipeline|mesh_pp\b|\bpp\b|pp_"), ("tensor", r"tensor|mesh_tp\b|\btp\b|tp_"),
    ("data", r"with_cp|dp_cp|dp_shard|dp_replicate|fsdp|hsdp"),
    ("context", r"context|sequence|mesh_cp\b|\bcp\b|cp_|ulysses|ring"),
    ("data", r"data|mesh_dp|\bdp\b|dp_|default"),
)


def dimension(name: str, description: str) -> str:
    """Of a group by its names; "" where they do not tell."""
    text = f"{name} {description}".lower()
    return next((which for which, words in _WORDS if re.search(words, text)), "")


def dimensions(
    groups: Mapping[str, tuple[str, tuple[int, ...]]], rows: pd.DataFrame
) -> dict[str, str]:
    """By group: its dimension. Groups that only send messages are a pipeline's, and what nothing
    tells of is taken for data.

    @param groups  by name: description and world ranks
    @param rows    meetings.COLUMNS of all ranks
    """
    collective = rows.loc[rows["kind"] == COLLECTIVE, "group"].astype(object)
    meets = set(collective.unique())
    found = {}
    for name in {*groups, *rows["group"].astype(object).unique()}:
        told = dimension(name, groups.get(name, ("", ()))[0])
        found[name] = told or ("data" if name in meets else "pipeline")
    return found


def places(
    ranks: Sequence[int], told: Mapping[int, Mapping[str, int]],
    groups: Mapping[str, tuple[str, tuple[int, ...]]], of_group: Mapping[str, str],
    rows: pd.DataFrame, sizes: Mapping[str, int] | None,
) -> dict[int, dict[str, int]]:
    """Coordinates of each rank.

    `sizes` (what the user says) decides: ranks count through tensor, then context, data and
    pipeline, as Megatron-LM numbers them. Else a rank's place is what its file says; else its index
    in its group of a dimension; else, in a chain of messages, its turn.
    """
    if sizes:
        return _by_sizes(ranks, sizes)
    split = {name: members for name, (_, members) in groups.items()
             if 1 < len(set(members) & set(ranks)) < len(ranks)}
    chains = _chains(ranks, rows)
    found = {}
    for rank in ranks:
        mine = dict.fromkeys(DIMENSIONS, 0)
        if split:
            # Of several groups of a dimension the smallest says a rank's place.
            for name, members in sorted(split.items(), key=lambda item: -len(item[1])):
                if rank in members:
                    mine[of_group[name]] = members.index(rank)
        else:  # all do the same, but for what chains of messages tell
            chain = next(one for one in chains if rank in one)
            mine["data"], mine["pipeline"] = chains.index(chain), chain.index(rank)
        found[rank] = {**mine, **told.get(rank, {})}
    return found


def _by_sizes(ranks: Sequence[int], sizes: Mapping[str, int]) -> dict[int, dict[str, int]]:
    whole = math.prod(sizes.values())
    if max(ranks, default=0) >= whole:
        raise UsageError(f"--layout has {whole} places, the trace has rank {max(ranks)}")
    found = {}
    for rank in ranks:
        left, mine = rank, {}
        for which in ("tensor", "context", "data", "pipeline"):
            left, mine[which] = divmod(left, sizes.get(which, 1))
        found[rank] = mine
    return found


def check_size(sizes: Mapping[str, int], world: int) -> None:
    """@throws UsageError where the layout has more ranks than the run"""
    places = math.prod(sizes.values())
    if places > world:
        raise UsageError(f"--layout has {places} places, and the files say that the run has "
                         f"{counted(world, 'rank')}")


def _chains(ranks: Sequence[int], rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Ranks that send one another messages, in the order of their numbers: pipelines, where nothing
    says so."""
    messages = rows[(rows["kind"] != COLLECTIVE) & (rows["peer"] >= 0)]
    owner = {rank: rank for rank in ranks}

    def root(rank: int) -> int:
        while owner[rank] != rank:
            rank = owner[rank]
        return rank

    for rank, peer in messages[["rank", "peer"]].drop_duplicates().itertuples(index=False):
        if peer in owner and rank in owner:
            owner[root(max(rank, peer))] = root(min(rank, peer))
    chains: dict[int, list[int]] = {}
    for rank in ranks:
        chains.setdefault(root(rank), []).append(rank)
    return [tuple(one) for one in chains.values()]


def parsed(text: str) -> dict[str, int]:
    """ "data=4,tensor=2" by dimension. @throws UsageError"""
    found = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        sound = name in DIMENSIONS and name not in found and size.isascii() and size.isdecimal()
        if not sound or not 1 <= int(size[:9]) <= 1 << 20:
            raise UsageError(f"--layout: found '{part}'; valid: sizes of {', '.join(DIMENSIONS)}, "
                             "such as data=4,tensor=2")
        found[name] = int(size)
    return found
