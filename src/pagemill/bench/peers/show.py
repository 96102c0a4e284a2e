"""Shows results, on a terminal and in a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagemill.bench import report
from pagemill.bench.peers.tables import all_tables
from pagemill.errors import ConfigError

BENCHMARK = "peers"
TABLES = ("peers", "peers-memory", "peers-start", "peers-settings")
"""Places in a document."""


@dataclass(frozen=True, kw_only=True)
class ShowPeersCommand:
    """``pagemill bench peers --from-json``: the tables of results that are there."""

    from_json: Sequence[Path]
    docs: Path | None = None

    def __call__(self) -> int:
        """Show and write; returns the exit code.

        Raises:
            ConfigError: a file is no result, or they are of several models.
        """
        results = [report.read_json(path, BENCHMARK) for path in self.from_json]
        for path, result in zip(self.from_json, results, strict=True):
            if result["model"] != results[0]["model"]:
                raise ConfigError(
                    f"{path} is about {result['model']['name']}, {self.from_json[0]} about "
                    f"{results[0]['model']['name']}; one set of tables is about one model"
                )
        show(results, self.docs)
        return 0


def show(results: Sequence[dict[str, Any]], docs: Path | None) -> None:
    """Print the tables; put them into a document too, which keeps those that no result has.

    Raises:
        ConfigError: the document lacks a marker.
    """
    tables = all_tables(results)
    for table in tables.values():
        table.print()
    if docs is not None:
        report.check_places(docs, TABLES)
        for name, table in tables.items():
            report.replace_generated(docs, name, table.markdown())
