# SPDX-License-Identifier: Apache-2.0
"""Numbers as text, for tables on a terminal and on the page."""

from __future__ import annotations

NONE = "-"


def number(value: float | None, form: str) -> str:
    return NONE if value is None or value != value else format(value, form)


def counted(number: int, what: str) -> str:
    """ "no ranks", "1 rank", "2 ranks"."""
    return f"{f'{number:,}' if number else 'no'} {what}{'' if number == 1 else 's'}"


def signed(value: float, form: str = ".3g") -> str:
    """With a sign, the minus as long as the plus."""
    return format(value, f"+{form}").replace("-", "−")


def seconds(value: float | None) -> str:
    """Four digits with the unit that suits."""
    if value is None or value != value:
        return NONE
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:#.4g} {unit}".replace("-", "−")
    return f"{value * 1e9:.0f} ns".replace("-", "−") if value else "0 s"


def change(value: float) -> str:
    """seconds() with a sign."""
    return f"{'−' if value < 0 else '+'}{seconds(abs(value))}"


def share(value: float | None) -> str:
    return number(value, ".1%")


def byte_count(value: float | None) -> str:
    if value is None or value != value:
        return NONE
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def count(value: float | None) -> str:
    """Of FLOPs: three digits, in powers of ten."""
    if value is None or value != value:
        return NONE
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def byte_rate(value: float | None) -> str:
    """Of bytes per second, as networks are sold: in powers of ten."""
    if value is None or value != value:
        return NONE
    for unit, size in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B/s"


def ranks_of(members: tuple[int, ...]) -> str:
    """Numbers of ranks in ascending order, three neighbours or more as 4–7; of many the first, the
    last and how many."""
    runs: list[list[int]] = []
    for rank in members:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    said = [text for run in runs
            for text in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(said) <= 8:
        return ", ".join(said)
    return f"{said[0]}, {said[1]} … {said[-1]} ({len(members)} ranks)"


def ranks_named(members: tuple[int, ...]) -> str:
    """ "rank 3", "ranks 4–7"."""
    return f"rank{'' if len(members) == 1 else 's'} {ranks_of(members)}"


_HOST_DEVICES = ("", "host", "OpenMP", "Serial", "Threads")


def gpu(device: str, local_rank: int) -> str:
    """ "GPU 3", with the number of the rank on its host; "" where a rank computes on the host, or
    nothing tells on which host."""
    return "" if on_host(device) or local_rank < 0 else f"GPU {local_rank}"


def on_host(device: str) -> bool:
    """Whether a rank with this device computes on cores of its host."""
    return device in _HOST_DEVICES


def role_name(role: str) -> str:
    return {"attention_server": "server", "both": "trainer+server"}.get(role, role)


def shortened(text: str, most: int) -> str:
    """Cuts to `most` characters and adds an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"
