"""``scripts/soak``: hundreds of clients of every kind against a real server process.

The load runs in rounds. After each, all clients leave, and what the server holds is read; the first
round warms it up. In the end everything must be back, and nobody well-behaved may have waited for
longer than ``--longest-wait``.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from random import Random

from tests.server.processes import REAL, SIMULATED, ServerProcess
from tests.soak.clients import SHARES, World, asks_for_health, live
from tests.soak.figures import Held, complaints, held_by
from tests.soak.raw_http import Address

NUM_ROUNDS = 4
SERVER_ERROR = re.compile(r" 50[0124] [\d.]+ms |Traceback")
MODEL = "smollm2-135m"


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=600, help="of load")
    add("--clients", type=int, default=300)
    add("--model", help="a real one; without it, a simulated engine")
    add("--longest-wait", type=float, default=10, help="seconds that nobody may wait beyond")
    add("--memory-mib", type=float, default=16, help="growth of memory after the first round")
    add("--idle-seconds", type=float, default=3, help="until what was left must be free")
    add("--max-tokens", type=int, default=40, help="longest answer of the well-behaved")
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def start(options: argparse.Namespace) -> ServerProcess:
    if options.model is None:
        # A pool that is too small for all: some are preempted all the time.
        size = ("--num-kv-blocks", "512", "--max-num-seqs", "128")
        return ServerProcess(*size, module=SIMULATED, STEP_SECONDS="0.005")
    named = ("--served-model-name", MODEL)
    # All of the pool is touched in the first round, so that memory can be compared later.
    pool = ("--num-kv-blocks", "1024", "--check-invariants")
    return ServerProcess(options.model, *named, *pool, module=REAL)


async def one_round(world: World, num_clients: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    world.random.shuffle(kinds)
    async with asyncio.TaskGroup() as group:
        group.create_task(live(world, asks_for_health, until))
        for number in range(num_clients):
            group.create_task(live(world, kinds[number % len(kinds)], until))


def soak(options: argparse.Namespace) -> list[str]:
    """Run it and say what happened; returns what is wrong."""
    with start(options) as server:
        client = server.ready()
        url = str(client.base_url)
        client.close()
        pid = server.process.pid
        world = World(Address.of(url), MODEL, Random(options.seed), options.max_tokens)
        fresh = held_by(pid, url)
        print(f"fresh    {fresh.line()}", flush=True)
        held: list[Held] = []
        for number in range(NUM_ROUNDS):
            asyncio.run(one_round(world, options.clients, options.seconds / NUM_ROUNDS))
            held.append(held_by(pid, url))
            print(f"round {number + 1}  {held[-1].line()}", flush=True)
        server.signal(signal.SIGTERM)
        code = server.end()
        limits = {"memory_mib": options.memory_mib, "idle_seconds": options.idle_seconds}
        wrong = complaints(fresh, held[0], held[-1], **limits)
        wrong += world.faults
        wrong += [line.strip() for line in server.lines if SERVER_ERROR.search(line)][:20]
        if code != 0:
            wrong.append(f"after SIGTERM its exit code was {code}")
        _report(world, options)
        longest = max(world.first_waits, default=float("inf"))
        if max(longest, world.longest_gap) > options.longest_wait:
            wrong.append(f"a well-behaved client waited for more than {options.longest_wait:g} s")
        if not world.count["answers that were whole"]:
            wrong.append("nobody got an answer")
        return wrong


def _report(world: World, options: argparse.Namespace) -> None:
    print(f"\n{options.clients} clients for {options.seconds:g} s, seed {options.seed}")
    for what, number in sorted(world.count.items()):
        print(f"{number:8}  {what}")
    for name, waits in (
        ("first token (or whole answer)", world.first_waits),
        ("/health", world.health_waits),
    ):
        listed = sorted(waits) or [float("nan")]
        median, p99 = listed[len(listed) // 2], listed[int(len(listed) * 0.99)]
        print(
            f"wait for {name}: median {median:.3f} s, p99 {p99:.3f} s, longest {listed[-1]:.3f} s"
        )
    print(f"longest gap in the stream of a well-behaved client: {world.longest_gap:.3f} s")


def main(arguments: list[str]) -> int:
    wrong = soak(parsed(arguments))
    for line in wrong:
        print(f"WRONG: {line}")
    print("soak: " + (f"{len(wrong)} things are wrong" if wrong else "all is well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
