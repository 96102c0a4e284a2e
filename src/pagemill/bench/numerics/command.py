"""All formats of a model on a text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pagemill.bench.environment import describe_environment
from pagemill.bench.numerics.divergence import compare, windows_of
from pagemill.bench.numerics.formats import REFERENCE, Format, formats_named
from pagemill.bench.numerics.logprobs import PromptLogprobs
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table, read_json, replace_generated, write_json
from pagemill.config import DEFAULT_MODEL
from pagemill.errors import ConfigError

NAME: Final = "numerics"
TEXT: Final = Path(__file__).parents[1] / "data" / "numerics.txt"
"""Ships with the package. Prose of three authors long out of copyright (the first chapter of "Pride
and Prejudice", the beginning of "Alice's Adventures in Wonderland", the Gettysburg Address), and
prose, code, a table and JSON that were written for it."""
MIN_WINDOW_TOKENS: Final = 16


@dataclass(frozen=True, kw_only=True)
class NumericsCommand:
    """A parsed ``pagemill bench numerics``; call it to run it.

    Attributes:
        model: an alias, a file or a directory.
        text: a file; None: `TEXT`.
        formats: names between commas; None: all that are usual.
        window_tokens: the text is cut into prompts of so many tokens.
        num_threads: that compute.
        json: where everything goes.
        docs: the document whose table is replaced.
        from_json: report this result and measure nothing.

    Raises:
        ConfigError: there is no such format, or no such window.
    """

    num_threads: int
    model: str = DEFAULT_MODEL
    text: Path | None = None
    formats: str | None = None
    window_tokens: int = 512
    json: Path | None = None
    docs: Path | None = None
    from_json: Path | None = None

    def __post_init__(self) -> None:
        formats_named(self.formats)
        if self.window_tokens < MIN_WINDOW_TOKENS:
            raise ConfigError(
                f"--window must be at least {MIN_WINDOW_TOKENS}, got {self.window_tokens}"
            )

    def __call__(self) -> int:
        """Measure, or read what was; print and write; returns the exit code."""
        result = self._measure() if self.from_json is None else read_json(self.from_json, NAME)
        table = table_of(result)
        if self.json is not None:
            write_json(self.json, result)
        if self.docs is not None:
            replace_generated(self.docs, f"{NAME} {result['model']}", table.markdown())
        table.print()
        return 0

    def _measure(self) -> dict[str, Any]:
        environment = describe_environment(num_threads=self.num_threads, repeats=1, seed=None)
        path = TEXT if self.text is None else self.text
        text = _read(path)
        with closing(self._opened(REFERENCE)) as reference:
            windows = self._windows(reference, text)
            formats = list(self._compare_all(reference, windows))
        return {
            "benchmark": NAME,
            "environment": environment,
            "model": Path(self.model).name,
            "text": {
                "name": path.name,
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
                "windows": len(windows),
                "window_tokens": self.window_tokens,
            },
            "formats": formats,
        }

    def _compare_all(
        self, reference: PromptLogprobs, windows: Sequence[Sequence[int]]
    ) -> Iterator[dict[str, Any]]:
        formats = formats_named(self.formats)
        with Progress(len(formats)) as progress:
            for form in formats:
                progress.doing(str(form))
                with closing(self._opened(form)) as other:
                    divergence = compare(reference, other, windows)
                yield {
                    "weights": form.weights,
                    "kv_cache_dtype": form.kv_dtype,
                    **divergence.to_json(),
                }
                progress.done()

    def _opened(self, form: Format) -> PromptLogprobs:
        return PromptLogprobs(self.model, form, self.window_tokens, self.num_threads)

    def _windows(self, reference: PromptLogprobs, text: str) -> list[list[int]]:
        tokenizer = reference.tokenizer
        if tokenizer is None:
            raise ConfigError(f"{self.model} comes without a tokenizer, so it cannot read a text")
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        windows = list(windows_of(token_ids, self.window_tokens, tokenizer.encode("")))
        if not windows:
            raise ConfigError("--text: there is no token to predict in it")
        return windows


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text={path}: cannot be read as text: {error}") from error


def table_of(result: dict[str, Any]) -> Table:
    """What was measured, for people."""
    environment, text = result["environment"], result["text"]
    rows = [
        (
            row["weights"],
            row["kv_cache_dtype"],
            f"{row['perplexity']:.3f}",
            f"{row['mean_kl']:.6f}",
            f"{row['p99_kl']:.5f}",
            f"{row['agreement']:.2%}",
        )
        for row in result["formats"]
    ]
    num_tokens = result["formats"][0]["num_tokens"] if rows else 0
    return Table(
        f"{result['model']}: against float32",
        ("weights", "KV cache", "perplexity", "mean KL", "99th percentile", "same best token"),
        rows,
        [
            f"{num_tokens} tokens of {text['name']} in {text['windows']} windows of "
            f"{text['window_tokens']} tokens; native kernels for {environment['isa']}."
        ],
    )
