"""A server fetches nothing, unpickles nothing and starts nothing that a request could name."""

from __future__ import annotations

import ast
from pathlib import Path

import pagemill.server

FORBIDDEN = {
    *("pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "importlib", "ctypes"),
    *("urllib.request", "http.client", "requests", "httpx", "aiohttp", "urllib3"),
    *("subprocess", "multiprocessing", "code", "pty"),
}


def test_no_module_of_the_server_imports_what_could() -> None:
    paths = list(Path(pagemill.server.__file__).parent.rglob("*.py"))
    assert len(paths) > 20
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
            for name in names:
                assert not {name, name.partition(".")[0]} & FORBIDDEN, f"{path}: {name}"
