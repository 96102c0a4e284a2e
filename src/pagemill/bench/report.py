"""Results as JSON, as tables on a terminal, and as tables in a document."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pagemill.errors import ConfigError

NOT_MEASURED = "Not measured yet."
"""What stands in a document between markers of which there is no result."""


@dataclass(frozen=True)
class Table:
    """Texts in rows and columns, for people."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table."""

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), (self.title, row)

    def print(self, console: Console | None = None) -> None:
        """Show it on a terminal; standard output by default."""
        console = Console() if console is None else console
        table = RichTable(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), overflow="fold", justify="left" if number == 0 else None)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        for note in self.notes:
            console.print(Text(note))

    def markdown(self) -> str:
        """The table without its title, which is the document's to give, and the notes below."""
        lines = [_markdown_row(self.columns), "|" + "---|" * len(self.columns)]
        lines += [_markdown_row(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def write_json(path: Path, result: Any) -> None:
    """Write a result; a file that is there is replaced as a whole or not at all.

    Raises:
        OSError: the file cannot be written; its directory must exist.
    """
    _write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, benchmark: str) -> dict[str, Any]:
    """A result that `write_json` wrote.

    Args:
        path: the file.
        benchmark: what its field ``benchmark`` must be.

    Raises:
        ConfigError: there is no such file, or it is no result of this benchmark.
    """
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read a result from {path}: {error}") from error
    found = result.get("benchmark") if isinstance(result, dict) else None
    if found != benchmark:
        raise ConfigError(
            f"{path} is no result of `pagemill bench {benchmark}`: its field benchmark is {found!r}"
        )
    return dict(result)


def replace_generated(path: Path, name: str, content: str) -> None:
    """Replace what stands between two markers of a markdown file; the rest stays as it is.

        <!-- generated: NAME -->
        ...
        <!-- end: NAME -->

    Raises:
        ConfigError: the file cannot be read, or lacks one of the markers, or has it twice.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot write a table to {path}: {error.strerror}") from error
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    for marker in (begin, end):
        if (count := text.count(marker)) != 1:
            raise ConfigError(
                f"{path} has the marker {marker} {count} times; it must be there once, so that "
                f"the table has a place"
            )
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ConfigError(f"{path}: the marker {end} comes before {begin}; exchange them")
    _write_atomically(path, f"{before}{begin}\n{content.strip()}\n{end}{after}")


def _write_atomically(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        # mkstemp's files are for their owner only.
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
