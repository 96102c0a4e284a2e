"""A server on this machine that answers like the Hugging Face hub, for repositories in memory.

What ``huggingface_hub`` asks for: ``/api/models/REPO[/revision/REV]`` (commit and file names),
``/api/models/REPO/tree/COMMIT`` (sizes), ``/REPO/resolve/COMMIT/FILE`` (content). Errors carry the
header ``X-Error-Code``.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GATED = "gated/model"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    downloads: ClassVar[list[str]] = []

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
        return

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repo, rest = (
            ("/".join(parts[2:4]), parts[4:]) if is_api else ("/".join(parts[:2]), parts[2:])
        )
        if repo == GATED:
            self._error(403, "GatedRepo")
        elif repo not in self.repositories:
            self._error(401, "RepoNotFound")
        elif len(rest) > 1 and rest[1] not in ("main", "v1", COMMIT):
            self._error(404, "RevisionNotFound")
        elif is_api and rest[:1] == ["tree"]:
            self._json([self._entry(repo, name) for name in self.repositories[repo]])
        elif is_api:
            siblings = [{"rfilename": name} for name in self.repositories[repo]]
            self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
        else:
            self._file(repo, "/".join(rest[2:]))

    def _entry(self, repo: str, name: str) -> dict[str, Any]:
        content = self.repositories[repo][name]
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}

    def _file(self, repo: str, name: str) -> None:
        if name not in self.repositories[repo]:
            self._error(404, "EntryNotFound")
            return
        content = self.repositories[repo][name]
        if self.command == "GET":
            self.downloads.append(f"{repo}/{name}")
        etag = hashlib.sha1(content).hexdigest()
        self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        body = json.dumps({"error": code}).encode()
        self._send(status, body, {"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def fake_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Serve; yields the endpoint and the list of downloads made so far (``REPO/FILE``)."""
    downloads: list[str] = []
    handler = type("Handler", (_Handler,), {"repositories": repositories, "downloads": downloads})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", downloads
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
