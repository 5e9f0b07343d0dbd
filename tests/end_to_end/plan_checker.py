# SPDX-License-Identifier: Apache-2.0
"""Checks what `cadenza plan --format json` says, from the rules of a plan alone, on dense arrays.

Every function returns what it found wrong as lines of text; an empty list is a good plan.
"""

import numpy as np

INPUTS = ("Q", "K", "V")
RESULTS = ("O", "LSE")


class Shape:
    def __init__(self, experiment):
        model = experiment["model"]
        self.heads = model["heads"]
        self.kv_heads = model.get("kv_heads", model["heads"])
        self.head_dim = model.get("head_dim") or model["d_model"] // model["heads"]
        # Of a number of an input, and of a sum.
        self.element, self.sum = {
            "bfloat16": (2, 4),
            "float32": (4, 4),
            "float64": (8, 8),
        }[experiment["run"].get("dtype", "float32")]
        self.trainers = experiment["parallel"]["data"]
        servers = experiment["attention"].get("servers", "in_place")
        self.ranks = self.trainers + (0 if servers == "in_place" else servers)
        self.pool = (
            list(range(self.ranks))
            if servers == "in_place"
            else list(range(self.trainers, self.ranks))
        )

    def heads_of(self, what):
        return self.kv_heads if what in ("K", "V") else self.heads

    def bytes(self, move):
        number = self.sum if move["what"] in RESULTS else self.element
        numbers = 1 if move["what"] == "LSE" else self.head_dim
        return size(move["tokens"]) * size(move["heads"]) * numbers * number

    def kv_range(self, heads):
        group = self.heads // self.kv_heads
        return slice(heads[0] // group, -(-heads[1] // group))


def size(span):
    return span[1] - span[0]


def allowed(task):
    """The pairs of a task as a mask [queries, keys]."""
    q, k = np.arange(*task["q"])[:, None], np.arange(*task["k"])[None, :]
    return k <= q if task["rule"] == "causal" else np.ones((q.size, k.size), dtype=bool)


def tasks_of(plan):
    return [task for stage in plan["stages"] for task in stage["tasks"]]


def check_homes(report, shape):
    """Every token lives on exactly one trainer."""
    homes = [np.zeros(length, dtype=int) for length in report["documents"]]
    wrong = []
    for home in report["home"]:
        homes[home["document"]][slice(*home["tokens"])] += 1
        if not 0 <= home["rank"] < shape.trainers:
            wrong.append(f"home on rank {home['rank']}, which is no trainer")
    return wrong + [
        f"document {d} is not at home once" for d, h in enumerate(homes) if np.any(h != 1)
    ]


def check_coverage(report, shape):
    """Every allowed (query, key, head) of every document exactly once, and nothing else."""
    counts = [np.zeros((shape.heads, n, n), dtype=int) for n in report["documents"]]
    for plan in report["plans"]:
        for task in tasks_of(plan):
            counts[task["document"]][
                slice(*task["heads"]), slice(*task["q"]), slice(*task["k"])
            ] += allowed(task)
    return [
        f"document {document} is not covered once"
        for document, count in enumerate(counts)
        if np.any(count != np.tril(np.ones(count.shape[1:], dtype=int)))
    ]


def check_costs(report, shape):
    """4 head_dim FLOPs per pair and head, on a server; moves have the bytes of their rows."""
    wrong = []
    for plan in report["plans"]:
        for task in tasks_of(plan):
            flops = 4.0 * shape.head_dim * np.count_nonzero(allowed(task)) * size(task["heads"])
            if abs(task["cost"] - flops) > 1e-9 * flops:
                wrong.append(f"task {task} costs {flops}")
            if task["server"] not in shape.pool:
                wrong.append(f"task {task} is not on a server")
        for stage in plan["stages"]:
            wrong += [
                f"move {move} has {shape.bytes(move)} bytes"
                for move in stage["moves"]
                if move["bytes"] != shape.bytes(move) or move["bytes"] == 0
            ]
            wrong += [
                f"move {move} goes nowhere" for move in stage["moves"] if move["from"] == move["to"]
            ]
    return wrong


class Replay:
    """What every rank holds while the stages of a plan go by."""

    def __init__(self, report, shape):
        self.lengths = report["documents"]
        self.shape = shape
        self.held = {}  # (rank, what, document) -> mask [tokens, heads]
        self.produced = {}  # (rank, document) -> mask of rows whose results this rank computed
        self.wrong = []
        for home in report["home"]:
            for what in INPUTS:
                self.rows(home["rank"], what, home["document"])[slice(*home["tokens"])] = True

    def rows(self, rank, what, document):
        key = (rank, what, document)
        if key not in self.held:
            self.held[key] = np.zeros(
                (self.lengths[document], self.shape.heads_of(what)), dtype=bool
            )
        return self.held[key]

    def computed(self, rank, document):
        key = (rank, document)
        if key not in self.produced:
            self.produced[key] = np.zeros((self.lengths[document], self.shape.heads), dtype=bool)
        return self.produced[key]

    def move(self, move):
        what, where = move["what"], (slice(*move["tokens"]), slice(*move["heads"]))
        if what in RESULTS:
            if not np.all(self.computed(move["from"], move["document"])[where]):
                self.wrong.append(f"move {move} takes results that its source has not computed")
            return
        if not np.all(self.rows(move["from"], what, move["document"])[where]):
            self.wrong.append(f"move {move} takes what its source does not hold")
        target = self.rows(move["to"], what, move["document"])
        if np.any(target[where]):
            self.wrong.append(f"move {move} brings what is there already")
        target[where] = True

    def compute(self, task):
        heads = slice(*task["heads"])
        needs = (
            ("Q", task["q"], heads),
            ("K", task["k"], self.shape.kv_range(task["heads"])),
            ("V", task["k"], self.shape.kv_range(task["heads"])),
        )
        for what, tokens, of_heads in needs:
            if not np.all(
                self.rows(task["server"], what, task["document"])[slice(*tokens), of_heads]
            ):
                self.wrong.append(f"task {task} has no {what}")
        self.computed(task["server"], task["document"])[slice(*task["q"]), heads] = True


def check_flow(report, shape):
    """A task's inputs are there when it runs; its results reach their owner once, to be merged."""
    replay = Replay(report, shape)
    owners = [np.zeros(length, dtype=int) for length in report["documents"]]
    for home in report["home"]:
        owners[home["document"]][slice(*home["tokens"])] = home["rank"]
    sent = {}  # (what, from, document) -> how often each row went to its owner
    merged = {}  # (rank, document) -> how often each row of that contributor is merged
    for plan in report["plans"]:
        for stage in plan["stages"]:
            for move in stage["moves"]:
                replay.move(move)
                if move["what"] in RESULTS:
                    count_result(replay, owners, sent, move)
            for task in stage["tasks"]:
                replay.compute(task)
        for merge in plan["merges"]:
            count_merge(replay, owners, merged, merge)
    return replay.wrong + check_results(replay, owners, sent, merged)


def zeros(replay, document):
    return np.zeros((replay.lengths[document], replay.shape.heads), dtype=int)


def count_result(replay, owners, sent, move):
    document = move["document"]
    if np.any(owners[document][slice(*move["tokens"])] != move["to"]):
        replay.wrong.append(f"move {move} does not go to the owner")
    rows = sent.setdefault((move["what"], move["from"], document), zeros(replay, document))
    rows[slice(*move["tokens"]), slice(*move["heads"])] += 1


def count_merge(replay, owners, merged, merge):
    document = merge["document"]
    if np.any(owners[document][slice(*merge["tokens"])] != merge["owner"]):
        replay.wrong.append(f"merge {merge} is not at the owner")
    for rank in merge["contributors"]:
        rows = merged.setdefault((rank, document), zeros(replay, document))
        rows[slice(*merge["tokens"]), slice(*merge["heads"])] += 1


def check_results(replay, owners, sent, merged):
    wrong = []
    for (rank, document), computed in replay.produced.items():
        abroad = computed & (owners[document] != rank)[:, None]
        for what in RESULTS:
            rows = sent.get((what, rank, document), zeros(replay, document))
            if np.any(rows != abroad):
                wrong.append(f"{what} of document {document} from rank {rank} does not arrive once")
        rows = merged.get((rank, document), zeros(replay, document))
        if np.any(rows != computed):
            wrong.append(f"results of rank {rank} for document {document} are not merged once")
    wrong += [
        f"rank {rank} is merged but computed nothing of document {document}"
        for rank, document in merged
        if (rank, document) not in replay.produced
    ]
    return wrong


def check_summary(report, shape):
    """The summary is the sum over the plans."""
    cost, sent = np.zeros(shape.ranks), np.zeros(shape.ranks, dtype=int)
    keys = 0
    for plan in report["plans"]:
        for task in tasks_of(plan):
            cost[task["server"]] += task["cost"]
        for stage in plan["stages"]:
            for move in stage["moves"]:
                sent[move["from"]] += move["bytes"]
                keys += move["bytes"] if move["what"] in ("K", "V") else 0
    found = report["summary"]
    wrong = []
    if report["ranks"] != shape.ranks:
        wrong.append(f"ranks {report['ranks']}")
    if not np.allclose(found["cost_per_rank"], cost, rtol=1e-12):
        wrong.append(f"cost_per_rank {found['cost_per_rank']}, summed {cost}")
    if found["bytes_sent_per_rank"] != sent.tolist():
        wrong.append(f"bytes_sent_per_rank {found['bytes_sent_per_rank']}, summed {sent}")
    if not found["key_bytes_moved"] == keys >= found["key_bytes_needed"]:
        wrong.append(f"key bytes {found}, summed {keys}")
    imbalance = cost[shape.pool].max() / cost[shape.pool].mean()
    if abs(found["imbalance"] - imbalance) > 1e-9:
        wrong.append(f"imbalance {found['imbalance']}, computed {imbalance}")
    if not 0 < found["lower_bound_seconds"] <= found["predicted_seconds"]:
        wrong.append(f"seconds {found}")
    return wrong


def check_balance(report, shape, tolerance, block):
    """No server of a tick has more than the mean, the tolerance and one block's cost."""
    wrong = []
    for plan in report["plans"]:
        cost = np.zeros(shape.ranks)
        keys = 0
        for task in tasks_of(plan):
            cost[task["server"]] += task["cost"]
            keys = max(keys, task["k"][1])
        mean = cost[shape.pool].mean()
        limit = mean * (1 + tolerance) + 4.0 * shape.head_dim * shape.heads * block * keys
        if cost.max() > limit:
            wrong.append(f"tick {plan['tick']}: cost {cost}, at most {limit}")
    return wrong


CHECKS = (check_homes, check_coverage, check_costs, check_flow, check_summary)


def check(report, experiment):
    shape = Shape(experiment)
    return [line for check_one in CHECKS for line in check_one(report, shape)]
