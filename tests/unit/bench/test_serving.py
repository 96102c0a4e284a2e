"""``pagemill bench serving``: three real processes, and figures that say what they should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench.serving import client
from pagemill.bench.serving.command import (
    ALONE,
    BESIDE,
    OFFLINE,
    SERVED,
    WITHOUT,
    ServingCommand,
    quantile,
)
from pagemill.bench.serving.requests import FULL, Draw, of_kind
from tests.unit.bench.conftest import Benchmark, result_of


def run_of(contender: str, repeat: int, speed: float) -> dict[str, Any]:
    pair = {"median": 0.1, "p99": 0.2}
    return {
        "workload": "steady",
        "contender": contender,
        "repeat": repeat,
        "output_tokens_per_s": speed,
        "total_s": 1.0,
        "engine_cpu_s": 2.0,
        "client_cpu_s": 0.25,
        "ttft_s": pair,
        "itl_s": pair,
    }


def wait_of(situation: str, long_s: list[float], short_s: list[float]) -> dict[str, Any]:
    return {
        "situation": situation,
        "repeat": 0,
        "long_ttft_s": long_s,
        "short_ttft_s": short_s,
        "gaps_s": [0.05, 0.1],
    }


def test_the_ratio_is_that_of_the_rounds_and_waits_are_counted_in_chunk_steps() -> None:
    steady = [
        run_of(contender, repeat, speed)
        for contender, speeds in ((OFFLINE, (100, 50, 200)), (SERVED, (90, 48, 190)))
        for repeat, speed in enumerate(speeds)
    ]
    result = result_of(
        "serving",
        num_streams=64,
        long_tokens=4000,
        step_tokens=1024,
        runs=steady + [run | {"workload": "mixed"} for run in steady],
        waits=[
            wait_of(ALONE, [2.0], []),  # four chunk-steps of 0.5 s
            wait_of(WITHOUT, [], [0.1, 0.2]),
            wait_of(BESIDE, [2.5], [0.1, 0.75]),
        ],
    )
    command = ServingCommand(num_threads=2, repeats=3)
    throughput, waits = command.tables(result)
    assert [row[1:4] for row in throughput.rows[:2]] == [
        [OFFLINE, "100", ""],
        [SERVED, "90", "0.950"],  # the median of 0.9, 0.96 and 0.95
    ]
    assert waits.rows[1][0] == "beside a prompt of 4,000 tokens"
    assert waits.rows[1][2:6] == ["750 ms", "1.50", "750 ms", "1.50"]
    assert waits.rows[1][-1] == "2.5 s"


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_a_quantile_is_one_of_the_values(share: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected


def test_each_round_has_other_prompts_of_the_same_lengths() -> None:
    draw = Draw(FULL, vocab_size=49_152)
    for workload in ("steady", "mixed"):
        first, second = (draw.throughput(workload, tag) for tag in "12")
        assert len(first) == 64
        assert [(len(r[0]), r[1]) for r in first] == [(len(r[0]), r[1]) for r in second]
        prompts = {tuple(request.prompt_token_ids) for request in first + second}
        assert len(prompts) == 128
    with_long, without = (draw.beside_long("1", with_long=with_long) for with_long in (True, False))
    assert with_long[:-1] == without
    (long,) = of_kind(with_long, with_long, "long")
    assert len(long.request.prompt_token_ids) == 4000


def answer(pieces: list[bytes]) -> Callable[..., Any]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()

    return handle


def ask(pieces: list[bytes], num_streams: int = 1) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        server = await asyncio.start_server(answer(pieces), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            asked = [{"at_s": 0.1 * i, "body": {}} for i in range(num_streams)]
            try:
                return await client.run("127.0.0.1", port, asked)
            finally:  # the handlers
                others = asyncio.all_tasks() - {asyncio.current_task()}
                await asyncio.gather(*others, return_exceptions=True)

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
USAGE = b'data: {"usage": {"completion_tokens": 7}}\n\n'


def test_the_client_notes_when_bytes_come_and_reads_them_afterwards() -> None:
    # The last event in two pieces.
    told = ask([HEAD + b"data: {}\n\n", USAGE + b"data: [DO", b"NE]\n\n"], num_streams=2)
    for stream, at_s in zip(told["streams"], (0.0, 0.1), strict=True):
        assert stream["output_tokens"] == 7
        assert stream["events"] == 3
        assert len(stream["times_s"]) == 3
        assert at_s < stream["times_s"][0] < stream["times_s"][1] < told["total_s"]


def test_an_answer_that_is_no_whole_stream_ends_the_measurement() -> None:
    for pieces in ([HEAD + b"data: {}\n\n"], [b"HTTP/1.1 503 Service Unavailable\r\n\r\n"]):
        with pytest.raises(SystemExit, match="ended early"):
            ask(pieces)


def test_a_request_is_what_the_server_takes() -> None:
    head, _, body = client.request_bytes("127.0.0.1", 8000, {"model": "m"}).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_it_serves_and_measures(tiny_model: Path, benchmark: Benchmark) -> None:
    reported = benchmark("serving", str(tiny_model), "--fast", "--repeats", "1")
    runs = reported.result["runs"]
    assert {(run["workload"], run["contender"]) for run in runs} == {
        (workload, contender) for workload in ("steady", "mixed") for contender in (OFFLINE, SERVED)
    }
    assert {wait["situation"] for wait in reported.result["waits"]} == {ALONE, WITHOUT, BESIDE}
    assert "### What HTTP costs" in reported.document
    assert "### Beside a long prompt" in reported.document
