# SPDX-License-Identifier: Apache-2.0
"""Times what a rank of a PyTorch program does, step by step, for `cadenza-analyze import`.

Copy this file beside the program. It needs torch (tried: 2.2 and 2.15) and pyarrow:

    with TimeHook("trace", model) as hook:     # after init_process_group and DDP(model)
        for batch in hook.data(loader):        # times the wait for a batch
            ...
            hook.step()                        # at the end of every optimizer step

A rank writes a file rank-00000.00000000.arrow for every ten steps, complete when it has its name.
Timed are the forward passes of the models, the backward pass until its last gradient is computed,
the steps of optimizers, collectives and messages called as torch.distributed.NAME, and ranges of
your own: `with hook.range("checkpoint"):`. Gradient sums of DDP are seen through its communication
hook, unless the program has registered one; what that calls is seen then.

On a GPU, pairs of CUDA events are read once they have passed; nothing waits for the device. This
part has been tried with events that are made up, on no GPU.
"""

import contextlib
import functools
import inspect
import json
import os
import socket
import threading
import time
from collections import Counter, deque
from pathlib import Path

import pyarrow
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather",
               "reduce_scatter", "all_to_all_single", "all_to_all", "broadcast", "reduce", "gather",
               "scatter", "barrier")
MESSAGES = {"send": "send", "isend": "send", "recv": "receive", "irecv": "receive"}
COMPUTATION = ("attention", "dense", "other", "optimizer", "copy")
COLUMNS = {"begin_ns": "int64", "end_ns": "int64", "kind": "string", "phase": "string",
           "name": "string", "stream": "string", "group": "string", "members": "string",
           "sequence": "int64", "peer": "int32", "bytes": "int64", "dtype": "string",
           "enqueued_ns": "int64", "still_ns": "int64", "step": "int64", "lengths": "string"}
DEFAULTS = {"phase": "other", "name": "", "stream": "host", "group": "", "members": "",
            "sequence": -1, "peer": -1, "bytes": -1, "dtype": "", "enqueued_ns": 0, "still_ns": -1,
            "step": -1, "lengths": ""}
NO_BATCH = object()


class TimeHook:
    def __init__(self, folder, *models, every=10, first=0, place=None):
        """@param every  steps of a file
        @param first  number of the next step
        @param place  of the rank in the program's layout, as {"data": 1, "pipeline": 0}"""
        self._folder, self._every, self._place = Path(folder), every, place or {}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) \
            if dist.is_initialized() else (0, 1)
        devices = {p.device for model in models for p in model.parameters()}
        self._clock = DeviceClock() if "cuda" in {device.type for device in devices} else Clock()
        self._rows = deque()  # to which other threads append
        self._groups, self._turns = {}, Counter()
        self._doing = []  # (kind, phase, name) of the ranges that the program is in
        self._thread = threading.get_ident()
        self._number = self._first = first
        self._begun = self._piece = self._clock.now()
        self._processor = time.thread_time_ns()
        self._undo = contextlib.ExitStack()
        self._undo.callback(self._write, last=True)
        self._install(models)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._undo.close()

    def step(self, lengths=()):
        """A step ends, and the next one begins.
        @param lengths  tokens of each of its documents on this rank, where documents differ"""
        now = self._clock.now()
        self._cut(now)
        self._doing.clear()  # what an exception left
        self._add(self._begun[:1], now[:1], kind="step", step=self._number,
                  lengths=",".join(map(str, lengths)))
        self._begun, self._number = now, self._number + 1
        if self._number - self._first >= self._every:
            self._write()

    def data(self, loader):
        batches = iter(loader)
        while True:
            with self.range("data"):
                batch = next(batches, NO_BATCH)
            if batch is NO_BATCH:
                return
            yield batch

    @contextlib.contextmanager
    def range(self, kind, phase="other", name=""):
        """@param kind  attention, dense, other, optimizer, copy, data, checkpoint, synchronize"""
        self._enter(kind, phase, name)
        try:
            yield
        finally:
            self._leave()

    # The program is in the innermost range. The one around it goes on afterwards, in a new piece.

    def _enter(self, kind, phase, name):
        self._cut(self._clock.now())
        self._doing.append((kind, phase, name))

    def _leave(self):
        self._cut(self._clock.now())
        if self._doing:
            self._doing.pop()

    def _cut(self, now):
        begin, self._piece = self._piece, now
        before, self._processor = self._processor, time.thread_time_ns()
        if not self._doing:
            return
        kind, phase, name = self._doing[-1]
        if kind in COMPUTATION and len(now) == 2:
            self._add(begin, now, kind=kind, phase=phase, name=name, stream="device",
                      enqueued_ns=begin[0])
        else:
            still = now[0] - begin[0] - (self._processor - before)
            self._add(begin[:1], now[:1], kind=kind, phase=phase, name=name,
                      still_ns=max(still, 0) if kind in COMPUTATION else -1)

    def _add(self, begin, end, **columns):
        self._rows.append((begin, end, columns))

    # What is timed.

    def _install(self, models):
        def handles():
            for model in models:
                yield model.register_forward_pre_hook(
                    lambda *_: self._enter("other", "forward", "forward"))
                yield model.register_forward_hook(lambda *_: self._leave(), always_call=True)
            yield register_optimizer_step_pre_hook(
                lambda *_: self._enter("optimizer", "optimizer", "optimizer"))
            yield register_optimizer_step_post_hook(lambda *_: self._leave())

        for handle in handles():
            self._undo.callback(handle.remove)
        for model in models:
            if isinstance(model, torch.nn.parallel.DistributedDataParallel):
                with contextlib.suppress(RuntimeError):  # it has one already
                    model.register_comm_hook(model.process_group, mean_of_ranks)
        self._replace([torch.autograd], "backward", self._backward)
        for names, by in ((COLLECTIVES, self._collective), (MESSAGES, self._message),
                          (("batch_isend_irecv",), self._batch)):
            for name in names:
                self._replace([dist, dist.distributed_c10d], name, by)

    def _replace(self, modules, name, by):
        original = getattr(modules[0], name)
        timed = Timed(original, functools.partial(by, original))
        for module in modules:
            self._undo.callback(setattr, module, name, original)
            setattr(module, name, timed)

    def _backward(self, original, given, tensors, *args, **kwargs):
        """The pass computes until the engine has no more to do, and calls back before DDP and FSDP
        wait for the gradients of others: they ask for the same later."""
        def computed():
            self._leave()
            self._enter("synchronize", "backward", "gradients")

        def ask(_):
            torch.autograd.Variable._execution_engine.queue_callback(computed)

        root = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        with self.range("other", "backward", "backward"), contextlib.ExitStack() as after:
            if root.requires_grad:
                after.callback(root.register_hook(ask).remove)
            return original(tensors, *args, **kwargs)

    def _collective(self, original, given, *args, **kwargs):
        row = self._row("collective", original.__name__, given.get("group"), given.values())
        return self._communicate(functools.partial(original, *args, **kwargs), [row],
                                 given.get("async_op", False))

    def _message(self, original, given, *args, **kwargs):
        name, group = original.__name__, given.get("group")
        peer = given.get("dst", given.get("src"))
        inside = given.get("group_dst", given.get("group_src"))
        if peer is None and inside is not None:
            peer = dist.get_global_rank(group or dist.group.WORLD, inside)
        row = self._row(MESSAGES[name], name, group, [given["tensor"]], peer)
        return self._communicate(functools.partial(original, *args, **kwargs), [row],
                                 name in ("isend", "irecv"))

    def _batch(self, original, given, operations):
        rows = [self._row(MESSAGES[of.op.__name__], of.op.__name__, of.group, [of.tensor], of.peer)
                for of in operations]
        # Torch tells a send from a receive by what the function is now, not by what it was.
        now = [dist.P2POp(getattr(dist, of.op.__name__), of.tensor, of.peer, of.group, of.tag)
               for of in operations]
        return self._communicate(functools.partial(original, now), rows, True)

    def _row(self, kind, name, group, given, peer=None):
        """Columns of a communication. Its bytes are those of the largest argument."""
        group = group or dist.group.WORLD
        if group not in self._groups:
            self._groups[group] = (group.group_name, dist.get_process_group_ranks(group),
                                   dist.get_backend(group), getattr(group, "group_desc", ""))
        title, ranks, backend, _ = self._groups[group]
        turn = title, kind, peer
        self._turns[turn] += 1
        lists = [[x] if isinstance(x, torch.Tensor) else x for x in given]
        lists = [x for x in lists if isinstance(x, list) and x and isinstance(x[0], torch.Tensor)]
        return {"kind": kind, "name": name, "group": title, "peer": -1 if peer is None else peer,
                "phase": self._doing[-1][1] if self._doing else "other",
                "members": ",".join(map(str, ranks)), "sequence": self._turns[turn] - 1,
                "stream": f"{backend} {title} {kind}",
                "bytes": max((sum(t.nbytes for t in x) for x in lists), default=0),
                "dtype": str(lists[0][0].dtype).removeprefix("torch.") if lists else ""}

    def _communicate(self, call, rows, later):
        """From when this rank is there until the communication is done; `later`: not on return."""
        begin = self._clock.now()

        def done(row):
            self._add(begin, self._clock.now(), **row, enqueued_ns=begin[0])

        if not later:
            with self._waiting(), Timed.inside():
                result = call()
            done(rows[0])
            return result
        with Timed.inside():
            result = call()
        works = result if isinstance(result, list) else [result]
        # NCCL has one work for a batch.
        of = [[row] for row in rows] if len(works) == len(rows) else [rows, *[[]] * len(works)]
        handles = [work and self._followed(work, its, done) for work, its in zip(works, of)]
        return handles if isinstance(result, list) else handles[0]

    def _followed(self, work, rows, done):
        try:
            work.get_future().then(lambda _: [done(row) for row in rows])
            return Handle(work, self._waiting, [])
        except (RuntimeError, ValueError):  # of a message of gloo: it is sent when it is posted
            sent = [row for row in rows if row["kind"] == "send"]
            for row in sent:
                done(row)
            return Handle(work, self._waiting,
                          [functools.partial(done, row) for row in rows if row not in sent])

    def _waiting(self):
        """Only for the thread and the stream whose time is told."""
        if threading.get_ident() != self._thread or not self._clock.is_here():
            return contextlib.nullcontext()
        return self.range("synchronize", self._doing[-1][1] if self._doing else "other")

    # The file.

    def _write(self, last=False):
        if last:
            self._clock.finish()
        taken = [self._rows.popleft() for _ in range(len(self._rows))]
        ready = [self._clock.passed(end) for _, end, _ in taken]
        self._rows.extendleft(row for row, is_ready in zip(taken[::-1], ready[::-1])
                              if not is_ready)
        taken = [row for row, is_ready in zip(taken, ready) if is_ready]
        if not taken:
            return
        table = pyarrow.table(self._columns(taken)).replace_schema_metadata(self._metadata())
        path = self._folder / f"rank-{self._rank:05}.{self._first:08}.arrow"
        new = path.with_suffix(".unfinished")
        with pyarrow.ipc.new_file(new, table.schema) as file:
            file.write_table(table)
        os.replace(new, path)
        self._first = self._number

    def _columns(self, rows):
        times = self._clock.times([at for begin, end, _ in rows for at in (begin, end)])
        for number, (_, _, row) in enumerate(rows):
            row |= {"begin_ns": times[2 * number], "end_ns": times[2 * number + 1]}
        columns = {}
        for name, kind in COLUMNS.items():
            values = [row.get(name, DEFAULTS.get(name)) for _, _, row in rows]
            column = pyarrow.array(values, kind)
            columns[name] = column.dictionary_encode() if kind == "string" else column
        columns["rank"] = pyarrow.array([self._rank] * len(rows), "int32")
        return columns

    def _metadata(self):
        groups = {name: [what, ranks] for name, ranks, _, what in self._groups.values()}
        return {"cadenza.world": str(self._world), "cadenza.host": socket.gethostname(),
                "cadenza.device": self._clock.device, "cadenza.place": json.dumps(self._place),
                "cadenza.groups": json.dumps(groups)}


def mean_of_ranks(group, bucket):
    """What DDP does by itself; a communication hook of DDP."""
    if dist.get_backend(group) != "nccl":
        return allreduce_hook(group, bucket)
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Timed:
    """A function that is timed, but not what it calls in turn. It equals the original, as P2POp
    takes one of two functions."""

    _local = threading.local()

    def __init__(self, original, by):
        """@param by  is called with the arguments by name, and then as the original is"""
        functools.update_wrapper(self, original)
        self._bind, self._by = inspect.signature(original).bind, by

    def __call__(self, *args, **kwargs):
        given = self._bind(*args, **kwargs).arguments
        if getattr(self._local, "inside", False) \
                or given.get("group") is dist.GroupMember.NON_GROUP_MEMBER:
            return self.__wrapped__(*args, **kwargs)
        return self._by(given, *args, **kwargs)

    def __eq__(self, other):
        return other is self or other is self.__wrapped__

    def __hash__(self):
        return hash(self.__wrapped__)

    @classmethod
    @contextlib.contextmanager
    def inside(cls):
        cls._local.inside = True
        try:
            yield
        finally:
            cls._local.inside = False


class Handle:
    """Torch's handle of what goes on; waiting for it is timed, and tells `dones`."""

    def __init__(self, work, waiting, dones):
        self._work, self._waiting, self._dones = work, waiting, dones

    def wait(self, *args, **kwargs):
        with self._waiting():
            result = self._work.wait(*args, **kwargs)
        while self._dones:
            self._dones.pop()()
        return result

    def __getattr__(self, name):
        return getattr(self._work, name)


class Clock:
    """Of the processor. A moment is (ns,)."""

    device = "host"

    def __init__(self):
        self._epoch = time.time_ns() - time.perf_counter_ns()

    def now(self):
        return (self._epoch + time.perf_counter_ns(),)

    def is_here(self):
        return True

    def passed(self, moment):
        return True

    def times(self, moments):
        return [moment[0] for moment in moments]

    def finish(self):
        pass


class DeviceClock(Clock):
    """Of a GPU, too. A moment of the current stream is (ns when the process asked, CUDA event)."""

    def __init__(self):
        super().__init__()
        self.device = torch.cuda.get_device_name()
        self._stream = torch.cuda.current_stream()
        torch.cuda.synchronize()
        self._base_ns, self._base = self.now()

    def now(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return (*super().now(), event)

    def is_here(self):
        return torch.cuda.current_stream() == self._stream

    def passed(self, moment):
        return len(moment) == 1 or moment[1].query()

    def times(self, moments):
        """An event happens after the process asks for it, and has happened now: by this the
        device's clock is kept to the process's."""
        now = super().now()[0]
        times = [m[0] if len(m) == 1 else self._base_ns + round(1e6 * self._base.elapsed_time(m[1]))
                 for m in moments]
        of_device = [(t, m) for t, m in zip(times, moments) if len(m) == 2]
        if not of_device:
            return times
        early = max(m[0] - t for t, m in of_device)
        last, (_, event) = max(of_device, key=lambda pair: pair[0])
        move = min(max(early, 0), now - last)
        self._base_ns, self._base = last + move, event
        return [t if len(m) == 1 else t + move for t, m in zip(times, moments)]

    def finish(self):
        torch.cuda.synchronize()
