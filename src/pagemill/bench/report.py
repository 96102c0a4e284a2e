"""Results as JSON, as tables on a terminal, and as tables in a document."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pagemill.errors import ConfigError

NOT_MEASURED = "Not measured yet."
"""What stands in a document between markers as long as there is no result."""


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
        """Show it on a terminal; standard output by default.

        Where it is too narrow for the table, each row is shown as a list.
        """
        console = Console() if console is None else console
        if console.width >= self._narrowest():
            console.print(self._as_table())
        else:
            console.print(Text(self.title, style="bold"))
            for row in self.rows:
                console.print(self._as_list(row))
        for note in self.notes:
            console.print(Text(note))

    def _narrowest(self) -> int:
        """Columns of a terminal in which no word must be cut."""
        words = (
            max(len(word) for cell in cells for word in (cell.split() or [""]))
            for cells in zip(self.columns, *self.rows, strict=True)
        )
        return 1 + sum(longest + 3 for longest in words)

    def _as_table(self) -> RichTable:
        table = RichTable(title=self.title, title_justify="left", title_style="bold")
        for column in self.columns:
            table.add_column(Text(column), overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _as_list(self, row: Sequence[str]) -> RichTable:
        grid = RichTable.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for column, cell in zip(self.columns, row, strict=True):
            if cell:
                grid.add_row(Text(column), Text(cell))
        grid.add_row()
        return grid

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
    before, after = _around(path, name)
    _write_atomically(path, f"{before}\n{content.strip()}\n{after}")


def check_places(path: Path, names: Iterable[str]) -> None:
    """Raise the error of `replace_generated` before hours of measuring, not after them."""
    for name in names:
        _around(path, name)


def _around(path: Path, name: str) -> tuple[str, str]:
    """What comes before and after a generated part, its markers included."""
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
    return before + begin, end + after


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
