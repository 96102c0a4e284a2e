"""Imports point inward only: service, execution, core."""

from __future__ import annotations

import ast
from pathlib import Path

import pagemill

PACKAGE = Path(pagemill.__file__).parent
SERVICE = {"llm", "cli", "server", "assembly", "bench", "beam_search", "beams"}
EXECUTION = {
    "runner.torch_runner",
    "runner.native_runner",
    "runner.logits_pieces",
    "runner.device_batch",
    "runner.kv_pool",
    "models",
    "layers",
    "kernels",
    "sampling",
    "loading",
}


def ring_of(module: str) -> int:
    """0 core, 1 execution, 2 service; ``module`` is relative to the package."""
    parts = module.split(".")
    names = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    if names & SERVICE:
        return 2
    return 1 if names & EXECUTION else 0


def imports_of(path: Path) -> list[str]:
    """Modules of the package that are imported when this one is, relative to the package.

    Imports inside a function and under ``TYPE_CHECKING`` are not followed at import time.
    """
    names = []
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.If))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pagemill"):
            base = (node.module or "").removeprefix("pagemill").lstrip(".")
            names += [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [
                alias.name.removeprefix("pagemill.")
                for alias in node.names
                if alias.name.startswith("pagemill.")
            ]
    return names


def test_no_module_imports_from_a_ring_outside_its_own() -> None:
    seen_rings = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        seen_rings.add(ring_of(module))
        for imported in imports_of(path):
            assert ring_of(imported) <= ring_of(module), f"{module} imports {imported}"
    assert seen_rings == {0, 1, 2}


def test_torch_is_imported_by_no_module_of_the_core() -> None:
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if ring_of(module.removesuffix(".__init__")) == 0:
            assert "import torch" not in path.read_text(), module
