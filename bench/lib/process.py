# SPDX-License-Identifier: Apache-2.0
"""Programs that do one repetition when asked: the benchmarks' --interactive and the peers."""

import json
import os
import subprocess


class ProgramError(Exception):
    """A program refused a request, or ended."""


def cores(threads):
    """The first so many of the cores that this process may use."""
    available = sorted(os.sched_getaffinity(0))
    if threads > len(available):
        raise SystemExit(f"{threads} threads asked for, {len(available)} cores found")
    return available[:threads]


class Process:
    """One program with a number of threads, pinned to as many cores."""

    def __init__(self, words, threads, log, variables=None):
        self.words = [str(word) for word in words]
        self.log = log
        self.kept = {}  # what stays prepared, with its FLOPs
        placed = cores(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "false",
                       **(variables or {})}
        with open(log, "a", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                preexec_fn=lambda: os.sched_setaffinity(0, placed),
            )

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ProgramError(f"{self.words[-1]} ended with {self.process.wait()}; see {self.log}")
        try:
            answer = json.loads(line)
        except json.JSONDecodeError as error:
            raise ProgramError(f"{self.words[-1]} answered {line.strip()!r}") from error
        if "error" in answer:
            raise ProgramError(answer["error"])
        return answer

    def alive(self):
        return self.process.poll() is None

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Programs:
    """Processes by name and threads, started when first asked for."""

    def __init__(self, commands, logs, variables=None):
        self.commands = commands
        self.variables = variables
        self.logs = logs
        self.running = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, program, threads):
        """A process of its own, which the caller closes."""
        if program not in self.commands:
            raise ProgramError(f"{program} is not available")
        log = self.logs / f"{program}.log"
        return Process(self.commands[program], threads, log, self.variables)

    def shared(self, program, threads):
        key = program, threads
        if key not in self.running or not self.running[key].alive():
            self.running[key] = self.start(program, threads)
        return self.running[key]

    def close(self):
        for process in self.running.values():
            process.close()
        self.running.clear()
