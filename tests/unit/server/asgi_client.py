"""A client that calls an ASGI app directly, and reads, waits and leaves as it likes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from starlette.types import Message


class AsgiRequest:
    """One request under way.

    Args:
        app: the server.
        path: of the route.
        fields: of the body.
    """

    def __init__(self, app: FastAPI, path: str, fields: dict[str, Any]) -> None:
        self.status: int | None = None
        self.body = b""
        self.complete = False
        self._reads = asyncio.Event()
        self._reads.set()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(fields).encode()})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.create_task(app(scope, self._incoming.get, self._send))

    def leave(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})
        self._reads.set()

    def stop_reading(self) -> None:
        """The connection's buffers are full from now on."""
        self._reads.clear()

    def read_on(self) -> None:
        """Read again."""
        self._reads.set()

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.complete = not message.get("more_body", False)
