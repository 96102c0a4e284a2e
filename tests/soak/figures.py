"""What a server process holds, seen from outside, and whether that is as it should be."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

import httpx

FIGURE = re.compile(r"^pagemill:(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
BUSY = (
    "num_requests_in_flight",
    "num_open_sequences",
    "num_requests_running",
    "num_requests_waiting",
    "kv_blocks_referenced",
)
MAX_IDLE_SECONDS = 20.0
"""So long the server is given to become idle; how long it took is judged later."""


@dataclass(frozen=True)
class Held:
    """By an idle server."""

    blocks: int
    """Free and cached."""
    tasks: int
    threads: int
    files: int
    memory_bytes: int
    """Resident."""
    busy: tuple[str, ...]
    """What should be 0 and is not."""
    idle_after_seconds: float
    """The last client had left. Requests that are not aborted go on for longer."""

    def line(self) -> str:
        """For people."""
        return (
            f"{self.blocks} blocks free or cached, {self.tasks} tasks, {self.threads} threads, "
            f"{self.files} open files, {self.memory_bytes / 2**20:.1f} MiB; "
            f"idle after {self.idle_after_seconds:.1f} s"
        )


def read_metrics(url: str) -> dict[str, float]:
    """The server's own figures, by name and state."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    figures = {}
    for name, labels, value in FIGURE.findall(text):
        state = re.search(r'state="(\w+)"', labels)
        figures[name if state is None else f"{name}_{state[1]}"] = float(value)
    return figures


def held_by(pid: int, url: str) -> Held:
    """As soon as the server is idle, without connections, or after `MAX_IDLE_SECONDS`."""
    begun = time.monotonic()
    while True:
        figures = read_metrics(url)
        busy = tuple(f"{name}={figures[name]:g}" for name in BUSY if figures[name])
        connections = _num_connections(pid)
        if (not busy and not connections) or time.monotonic() > begun + MAX_IDLE_SECONDS:
            break
        time.sleep(0.1)
    idle_after_seconds = time.monotonic() - begun
    if connections:
        busy += (f"connections={connections}",)
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return Held(
        blocks=int(figures["kv_blocks_free"] + figures["kv_blocks_cached"]),
        tasks=int(figures["asyncio_tasks"]),
        threads=int(status["Threads"]),
        files=len(os.listdir(f"/proc/{pid}/fd")),
        memory_bytes=int(status["VmRSS"].split()[0]) * 1024,
        busy=busy,
        idle_after_seconds=idle_after_seconds,
    )


def _num_connections(pid: int) -> int:
    """Sockets of a process that are TCP connections and not merely listen."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    number = 0
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                number += fields[9] in inodes and fields[3] != "0A"
    return number


def complaints(
    fresh: Held, warm: Held, last: Held, *, memory_mib: float, idle_seconds: float
) -> list[str]:
    """What grew, or was not given back.

    Args:
        fresh: before the first request.
        warm: after the first part of the load, when pools of threads and memory have filled.
        last: at the end.
        memory_mib: how much more memory may be resident than when warm.
        idle_seconds: how long it may take to notice that all clients have left.
    """
    found = [f"{what} long after the last client left" for what in last.busy]
    if last.idle_after_seconds > idle_seconds:
        found.append(f"idle only {last.idle_after_seconds:.1f} s after the last client left")
    if last.blocks != fresh.blocks:
        found.append(f"{last.blocks} blocks are free or cached, of {fresh.blocks}")
    if last.tasks > fresh.tasks:
        found.append(f"{last.tasks} tasks, {fresh.tasks} at the start")
    pool = min(32, (os.cpu_count() or 1) + 4)  # of asyncio's threads
    if last.threads > max(warm.threads, fresh.threads + pool):
        found.append(f"{last.threads} threads, {warm.threads} when warm")
    if last.files > warm.files:
        found.append(f"{last.files} open files, {warm.files} when warm")
    grown = (last.memory_bytes - warm.memory_bytes) / 2**20
    if grown > memory_mib:
        found.append(f"memory grew by {grown:.1f} MiB since it was warm; {memory_mib:g} may be")
    return found
