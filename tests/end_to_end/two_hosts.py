# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces joined by a cable, each with a host name, a /tmp,
a /dev/shm and a monotonic clock of its own. What they share is a folder, as hosts share a file
system. The time of day is the kernel's alone: it cannot differ between them."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import harness

NAMES = ("host-a", "host-b")
NETWORK = "10.213.7"  # of the two alone: it leads nowhere else
SKEW = 1000  # seconds by which host-b's clock, which traces are written by, is ahead

# $1: the host's name; then folders that it shares, the first of them with the files below: they are
# bound to the same place, which may be below its own /tmp. Its process stands for the host.
HOLD = """
name=$1 folder=$2
shift
hostname "$name"
mount --make-rprivate /
mount --bind "$folder/hosts" /etc/hosts
mount -t tmpfs tmpfs /mnt
i=0
for shared; do
  i=$((i + 1))
  mkdir "/mnt/$i"
  mount --bind "$shared" "/mnt/$i"
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
i=0
for shared; do
  i=$((i + 1))
  mkdir -p "$shared"
  mount --move "/mnt/$i" "$shared"
done
ip link set lo up
echo $$ >"$folder/$name.new"
mv "$folder/$name.new" "$folder/$name"
exec sleep infinity
"""

# What mpirun starts its daemons with, in the place of ssh: HOST COMMAND...
AGENT = """#!/bin/sh
host=$1
shift
exec nsenter --target "$(cat {folder}/$host)" --net --uts --mount --time -- sh -c "$*"
"""


class Unavailable(Exception):
    """This machine lets no such hosts be made; the text says why."""


class TwoHosts:
    """`with TwoHosts(folder) as hosts`: `folder` and what is outside of /tmp is on both of them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.process = {}  # by name: the id of the process that stands for the host
        self._network = {}  # by name: what its processes have in common
        self._held = []

    def __enter__(self):
        addresses = "".join(f"{NETWORK}.{i} {name}\n" for i, name in enumerate(NAMES, 1))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + addresses)
        (self.folder / "agent").write_text(AGENT.format(folder=self.folder))
        (self.folder / "agent").chmod(0o755)
        try:
            for name, skew in zip(NAMES, (0, SKEW), strict=True):
                self._hold(name, skew)
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.process:
            for process in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for held in self._held:
            held.kill()
            held.wait()

    def _hold(self, name, skew):
        shared = [self.folder, harness.ROOT, harness.PROGRAM.parent]
        below = [path for path in shared[1:] if path.is_relative_to("/tmp")]
        held = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--time", "--monotonic", str(skew), "--fork",
             "--kill-child", "sh", "-euc", HOLD, "hold", name, *map(str, [self.folder, *below])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._held.append(held)
        try:
            harness.wait_until(held, (self.folder / name).exists)
        except AssertionError:
            raise Unavailable(held.communicate()[1].strip()) from None
        self.process[name] = int((self.folder / name).read_text())
        self._network[name] = os.readlink(f"/proc/{self.process[name]}/ns/net")

    def _connect(self):
        a, b = (str(self.process[name]) for name in NAMES)
        words = ["ip", "link", "add", "cable", "netns", a]
        words += ["type", "veth", "peer", "cable", "netns", b]
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Unavailable(made.stderr.strip())
        for i, name in enumerate(NAMES, 1):
            self.run(name, "ip", "address", "add", f"{NETWORK}.{i}/24", "dev", "cable")
            self.run(name, "ip", "link", "set", "cable", "up")

    def words(self, name, *words):
        entered = ["--target", self.process[name], "--net", "--uts", "--mount", "--time"]
        return [*map(str, ["nsenter", *entered, "--", *words])]

    def run(self, name, *words):
        subprocess.run(self.words(name, *words), check=True)

    def start(self, ranks, arguments):
        """The program with `ranks` ranks on each host, the first ones and mpirun on host-a. What it
        prints goes to files: of a pipe, a host that does not go on would hold the other end."""
        hosts = ",".join(f"{name}:{ranks}" for name in NAMES)
        launch = ["mpirun", "-n", 2 * ranks, "--host", hosts]
        network = f"{NETWORK}.0/24"
        variables = {
            "OMPI_MCA_plm_rsh_agent": str(self.folder / "agent"),
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,vader,tcp",
            "OMPI_MCA_btl_tcp_if_include": network,
            "OMPI_MCA_oob_tcp_if_include": network,
        }
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            return subprocess.Popen(
                self.words("host-a", *launch, harness.PROGRAM, *arguments),
                env={**harness.environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def result(self, process):
        """What the program started last has printed so far, and how mpirun has ended."""
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        return harness.Result(" ".join(process.args), process.poll(), out, err)

    def unplug(self):
        self.run("host-b", "ip", "link", "set", "cable", "down")

    def processes(self, name):
        """Of a host: all but those that stand for it."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                named = process.name.isdigit()
                if named and os.readlink(process / "ns/net") == self._network[name]:
                    found.append(int(process.name))
        standing = {*self.process.values(), *(held.pid for held in self._held)}
        return [process for process in found if process not in standing]

    def ranks(self, name):
        found = []
        for process in self.processes(name):
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{process}/exe")).resolve() == harness.PROGRAM:
                    found.append(process)
        return found
