"""A client of many streams, in a process of its own. Stand-alone: the standard library only.

    python client.py HOST PORT

Says ``{"ready": true}``, then answers each line of standard input with one of standard output:

    {"streams": [{"at_s": 0.0, "body": {...}}]}       requests to /v1/completions, and when
    {"total_s": 1.5, "cpu_s": 0.1, "streams": [{"at_s": 0.0, "times_s": [0.02, ...], "events": 9,
                                                "output_tokens": 8}]}

It has the processor that the server could use, too, so it does little: it notes when bytes come,
and reads them when all have come. Times are seconds from the line that was read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

DONE = b"data: [DONE]"
_BUFFER = memoryview(bytearray(1 << 16))
"""Where bytes arrive, of all streams: each takes its own out at once."""


class Stream(asyncio.BufferedProtocol):
    """One request on a connection of its own.

    Args:
        request: all of its bytes.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self.times: list[float] = []
        """When something came, on `time.perf_counter`."""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes are to go."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Note them."""
        self.times.append(time.perf_counter())
        received = self._received
        received += _BUFFER[:nbytes]
        if received.find(DONE, max(len(received) - nbytes - len(DONE), 0)) >= 0:
            self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has ended, well or not."""
        self.ended.set_result(None)

    def to_json(self, began: float, at_s: float) -> dict[str, Any]:
        """What came, and when."""
        events = [line for line in self._received.split(b"\n") if line.startswith(b"data: ")]
        if not events or not events[-1].startswith(DONE):
            raise SystemExit(f"a stream ended early: {bytes(self._received[-500:])!r}")
        return {
            "at_s": at_s,
            "times_s": [moment - began for moment in self.times],
            "events": len(events),
            "output_tokens": json.loads(events[-2].removeprefix(b"data: "))["usage"][
                "completion_tokens"
            ],
        }


def request_bytes(host: str, port: int, body: dict[str, Any]) -> bytes:
    """A request for a stream with its usage."""
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        f"connection: close\r\n\r\n"
    )
    return head.encode() + content


async def run(host: str, port: int, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask everything at its time; wait for all answers."""
    loop = asyncio.get_running_loop()
    requests = [request_bytes(host, port, one["body"]) for one in asked]
    cpu_began, began = time.process_time(), time.perf_counter()

    async def one(request: bytes, at_s: float) -> Stream:
        await asyncio.sleep(at_s - (time.perf_counter() - began))
        _, stream = await loop.create_connection(lambda: Stream(request), host, port)
        await stream.ended
        return stream

    pairs = zip(requests, asked, strict=True)
    streams = await asyncio.gather(*(one(request, ask["at_s"]) for request, ask in pairs))
    total_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    told = [stream.to_json(began, ask["at_s"]) for stream, ask in zip(streams, asked, strict=True)]
    return {"total_s": total_s, "cpu_s": cpu_s, "streams": told}


def main() -> None:
    """Serve until standard input ends."""
    host, port = sys.argv[1], int(sys.argv[2])
    _say({"ready": True})
    for line in sys.stdin:
        _say(asyncio.run(run(host, port, json.loads(line)["streams"])))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
