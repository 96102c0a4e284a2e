"""The report of ``pagemill info`` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Section = Mapping[str, Any]


def print_report(report: Mapping[str, Section], console: Console) -> None:
    """Print each section that the report has."""
    rows = {
        "model": _model_rows,
        "weights": _weights_rows,
        "kv_pool": _pool_rows,
        "environment": _environment_rows,
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, rows_of in rows.items():
        if name in report:
            table.add_row(Text(name.replace("kv_pool", "KV pool"), style="bold"), "")
            for label, value in rows_of(report[name]):
                table.add_row(f"  {label}", Text(value))
    console.print(table)


def show_bytes(num_bytes: float) -> str:
    """A size in the largest binary unit that leaves at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _model_rows(model: Section) -> Iterator[tuple[str, str]]:
    yield "name", model["name"]
    if "not_available" in model:
        yield "not available", model["not_available"]
        return
    yield "path", model["path"]
    yield (
        "architecture",
        f"{model['architecture']}, {model['num_parameters'] / 1e6:,.1f}M parameters",
    )
    yield (
        "layers",
        f"{model['num_layers']}, hidden size {model['hidden_size']:,}, {model['num_heads']} heads "
        f"and {model['num_kv_heads']} KV heads of {model['head_dim']}",
    )
    yield "vocabulary", f"{model['vocab_size']:,} tokens"
    yield "context", _context(model)
    yield "positions", _positions(model)
    yield "chat", _chat(model)


def _context(model: Section) -> str:
    text = f"{model['max_model_len']:,} tokens"
    if model["max_model_len"] != model["trained_len"]:
        text += f" (the checkpoint states {model['trained_len']:,})"
    if model["sliding_window"] is not None:
        text += f"; some layers see the last {model['sliding_window']:,} only"
    return text


def _positions(model: Section) -> str:
    if model["rope"] is None:
        return "learned"
    shown = [_rope(model["rope"])]
    if model["local_rope"] is not None:
        shown.append(f"{_rope(model['local_rope'])} in layers with a window")
    return "; ".join(shown)


def _rope(rope: Section) -> str:
    factor = "" if rope["factor"] == 1.0 else f", factor {rope['factor']:g}"
    return f"RoPE {rope['rope_type']}, base {rope['theta']:,g}{factor}"


def _chat(model: Section) -> str:
    if model["has_chat_template"]:
        return "yes, the model has a chat template"
    if model["has_tokenizer"]:
        return "no chat template: this model completes text (pagemill generate)"
    return "no tokenizer: this model runs on token ids only"


def _weights_rows(weights: Section) -> Iterator[tuple[str, str]]:
    types = ", ".join(f"{name} x{count}" for name, count in weights["stored_as"].items())
    yield "stored as", f"{types}; {show_bytes(weights['stored_bytes'])}"
    yield "in memory as", f"{weights['dtype']}, {show_bytes(weights['memory_bytes'])}"


def _pool_rows(pool: Section) -> Iterator[tuple[str, str]]:
    yield "a token", show_bytes(pool["bytes_per_token"])
    yield "a block", f"{pool['block_size_tokens']} tokens, {show_bytes(pool['block_bytes'])}"
    yield (
        "the pool",
        f"{pool['num_blocks']:,} blocks = {pool['num_tokens']:,} tokens, "
        f"{show_bytes(pool['total_bytes'])}",
    )
    yield "decided by", pool["decided_by"]
    yield "holds", f"{pool['longest_sequences_that_fit']:,.1f} sequences of the longest length"


def _environment_rows(environment: Section) -> Iterator[tuple[str, str]]:
    yield "pagemill", environment["pagemill"]
    yield "Python", environment["python"]
    yield "torch", environment["torch"]
    yield "device", environment["device"]
    yield "kernels", environment["kernels"]
    yield "processors", str(environment["processors"])
    yield "free memory", show_bytes(environment["free_memory_bytes"])
    yield "model aliases", ", ".join(environment["model_aliases"])
