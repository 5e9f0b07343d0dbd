# SPDX-License-Identifier: Apache-2.0
"""Programs that end when a stage's time is over, whatever they do."""

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
import time


GRACE = 2.0  # seconds


class Failed(Exception):
    """What was to be shown was not."""


class Skipped(Exception):
    """What is to be shown cannot be, here."""


class Clock:
    """A stage's time."""

    def __init__(self, seconds):
        self.seconds, self.begin = seconds, time.monotonic()

    def spent(self):
        return time.monotonic() - self.begin

    def left(self):
        return max(0.0, self.seconds - self.spent())

    def over(self, words, limit=math.inf):
        what = f"the stage's {self.seconds:g} s" if self.left() == 0 else f"its {limit:g} s"
        return Failed(f"{words[0]} was ended: {what} were over")


def last_line(text):
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()),
                "it printed nothing")


def start(words, **options):
    try:
        return subprocess.Popen(list(map(str, words)), text=True, errors="replace",
                                start_new_session=True, **options)
    except OSError as error:
        raise Failed(f"{words[0]} cannot be started: {error.strerror}") from None


def kill(process):
    """With all that it has started: mpirun ends its ranks if it is asked, not if it is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(GRACE)
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ended_after(seconds, process):
    """Kills the process when the block takes longer. @return an event: that it did"""
    ended = threading.Event()

    def end():
        ended.set()
        kill(process)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()


def run(words, clock, log, limit=math.inf, **options):
    """@param limit  seconds, of the stage's that are left
    @return the exit code and what was printed, which `log` keeps"""
    process = start(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, **options)
    with ended_after(min(clock.left(), limit), process) as ended:
        out, _ = process.communicate()
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"== {' '.join(map(str, words))}\n{out}\n== ended with {process.returncode}\n")
    if ended.is_set():
        raise clock.over(words, limit)
    return process.returncode, out


class Conversation:
    """A program that answers one JSON object a line with another (bench/measure.hpp).
    @param limit  seconds of an answer"""

    def __init__(self, words, clock, log, limit, **options):
        self.words, self.clock, self.log, self.limit = words, clock, log, limit
        with open(log, "a", encoding="utf-8") as errors:
            self.process = start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=errors, **options)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            kill(self.process)

    def ask(self, request):
        """@throws Skipped where it refuses to prepare a work, Failed where one fails or it ends"""
        line, limit = "", min(self.clock.left(), self.limit)
        with ended_after(limit, self.process) as ended, contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            while (line := self.process.stdout.readline()) and not line.startswith("{"):
                pass  # what a library has to say
        if not line and ended.is_set():
            raise self.clock.over(self.words, limit)
        if not line:
            said = last_line(self.log.read_text())
            raise Failed(f"{self.words[-1]} ended with {self.process.wait()}: {said}")
        answer = json.loads(line)
        if "error" in answer:
            raise (Skipped if "prepare" in request else Failed)(answer["error"])
        return answer
