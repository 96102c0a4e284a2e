"""Just enough HTTP/1.1 for clients that behave badly on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Address:
    """Where the server is."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return cls(parts.hostname, parts.port)


def post(path: str, body: bytes | dict[str, Any], length: int | None = None) -> bytes:
    """A whole request; ``length`` is announced in place of the true one."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data) if length is None else length}\r\n\r\n"
    )
    return head.encode() + data


def get(path: str) -> bytes:
    """A whole request, the only one of its connection."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


class Connection:
    """One connection: sends bytes, and reads answers or does not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send, waiting until the server takes it."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = text.rstrip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        return int(first.split()[1]), headers

    async def body(self, headers: dict[str, str]) -> bytes:
        """The rest of an answer."""
        return b"".join([piece async for piece in self.pieces(headers)])

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The rest of an answer, as it comes."""
        if "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    def reset(self) -> None:
        """Leave without a goodbye."""
        sock = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(address: Address, *, small: bool = False) -> AsyncIterator[Connection]:
    """A connection of one's own; a small one holds little that was sent and not read."""
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        limit = 512 if small else 2**20
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    except BaseException:
        sock.close()
        raise
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
