"""How a model's constructor gets its tensors, whatever file they lie in."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.kernels.packing import (
    NotFiniteError,
    PackedLinear,
    Quantization,
    StoredRows,
    pack_rows,
)
from pagemill.loading.memory import give_back_freed_memory
from pagemill.loading.progress import Progress

# Buffers that old checkpoints store beside the weights; every model computes them itself.
_RECOMPUTED: Final = re.compile(
    r"(^|\.)rotary_emb\.inv_freq$|^transformer\.h\.[0-9]+\.attn\.(bias|masked_bias)$"
)
_OUTPUT_PROJECTION: Final = "lm_head.weight"
_MAX_NAMES_SHOWN: Final = 8


class WeightSource(Protocol):
    """Tensors by their canonical name: Hugging Face's, in Hugging Face's layout.

    ``model.layers.0.self_attn.q_proj.weight`` is ``[out, in]`` and follows the rotate-half
    convention of rotary positions; GPT-2's names start with ``transformer.``.
    """

    def names(self) -> Collection[str]:
        """All canonical names."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor: float32, float16 or bfloat16 as stored, float32 if quantized."""
        ...


@runtime_checkable
class QuantizedSource(Protocol):
    """A source that may hold matrices in quantized blocks."""

    def quantized_rows(self, name: str) -> StoredRows | None:
        """The rows of a matrix as stored; None if they are no quantized blocks."""
        ...


def stored_rows(source: WeightSource, name: str) -> StoredRows | None:
    """`QuantizedSource.quantized_rows`, and None for a source that holds no quantized blocks."""
    return source.quantized_rows(name) if isinstance(source, QuantizedSource) else None


@runtime_checkable
class MappedSource(Protocol):
    """A source that reads through a mapping of its file."""

    def release(self, name: str) -> None:
        """Let go of the memory that reading this tensor has filled; it may be read again."""
        ...


class WeightFiles(WeightSource, Protocol):
    """A source that lies in files, and knows how its tensors are stored there."""

    @property
    def files(self) -> Collection[Path]:
        """The files that hold the tensors."""
        ...

    def stored_type(self, name: str) -> str:
        """What the file calls the type of its numbers: ``F32``, ``BF16``, ``Q4_K``."""
        ...


class Packing(NamedTuple):
    """How matrices are packed for the native kernels."""

    as_stored: bool
    """Keep what the checkpoint has quantized; otherwise it becomes floats of the dtype."""
    quantization: Quantization | None = None
    """What becomes of float matrices."""
    num_threads: int = 1


class Weights:
    """Hands each tensor to a model once, checked and cast, and knows what nobody took.

    Args:
        source: where the tensors come from.
        dtype: what `take` casts to.
        packing: pack matrices for the native kernels; None: keep them dense.
        progress: show a bar on stderr; None: if it takes time and stderr is a terminal.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        *,
        packing: Packing | None = None,
        progress: bool | None = False,
    ) -> None:
        self.dtype = dtype
        self._source = source
        self._packing = packing
        self._names = frozenset(source.names())
        self._taken: set[str] = set()
        self._progress = Progress(
            "loading weights", total=len(self._names), unit="tensor", show=progress
        )

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name."""
        return name in self._names

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read a tensor that must have ``shape``; the result is contiguous and the caller's own.

        Raises `UnsupportedModelError` if it is missing and `InvalidFileError` if its shape is
        another one; both messages name the tensor.
        """
        self._require(name, shape)
        tensor = self._source.load(name).to(self.dtype).contiguous()
        self._mark_taken([name])
        return tensor

    def matrix(
        self, names: Sequence[str], in_size: int, out_sizes: Sequence[int]
    ) -> torch.Tensor | PackedLinear:
        """Matrices ``[out, in]`` of one input, joined, as the ops in use want them.

        Packed for the native kernels or, without them, one dense tensor. Raises like `take`.
        """
        if self._packing is not None:
            return self.take_linear(
                names,
                in_size,
                out_sizes,
                as_stored=self._packing.as_stored,
                quantization=self._packing.quantization,
                num_threads=self._packing.num_threads,
            )
        sizes = zip(names, out_sizes, strict=True)
        parts = [self.take(name, (size, in_size)) for name, size in sizes]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def transposed_matrix(
        self, name: str, in_size: int, out_size: int
    ) -> torch.Tensor | PackedLinear:
        """A matrix stored ``[in, out]``, turned; otherwise as `matrix`."""
        tensor = self.take(name, (in_size, out_size)).T.contiguous()
        if self._packing is None:
            return tensor
        return pack_rows(
            [StoredRows.of_tensor(tensor)],
            self._packing.quantization,
            num_threads=self._packing.num_threads,
        )

    def take_linear(
        self,
        names: Sequence[str],
        in_size: int,
        out_sizes: Sequence[int],
        *,
        as_stored: bool = True,
        quantization: Quantization | None = None,
        group_size: int | None = None,
        num_threads: int = 1,
    ) -> PackedLinear:
        """Read matrices ``[out, in]`` of one input, packed for the native kernels and joined.

        Args:
            names: the tensors, in the order of the outputs.
            in_size: K, the same for all.
            out_sizes: the rows of each.
            as_stored: keep what the checkpoint has quantized; otherwise it is dequantized first.
            quantization: what float weights become; None: they are cast to ``dtype``. What the
                checkpoint has quantized stays as it is stored.
            group_size: see `pack_rows`.
            num_threads: how many pack.

        Raises like `take`; also `InvalidFileError` if a weight to be quantized is not finite.
        """
        floats: list[torch.Tensor] = []  # what rows point into, while they are read
        parts = []
        for name, out_size in zip(names, out_sizes, strict=True):
            self._require(name, (out_size, in_size))
            rows = stored_rows(self._source, name) if as_stored else None
            if rows is None:
                tensor = self._source.load(name)
                tensor = (tensor if quantization else tensor.to(self.dtype)).contiguous()
                floats.append(tensor)
                rows = StoredRows.of_tensor(tensor)
            parts.append(rows)
        try:
            linear = pack_rows(parts, quantization, group_size, num_threads=num_threads)
        except NotFiniteError as error:
            raise InvalidFileError(f"tensor {' or '.join(map(repr, names))}: {error}") from None
        self._mark_taken(names)
        return linear

    def _require(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._names:
            raise UnsupportedModelError(
                f"the checkpoint has no tensor {name!r} (expected shape {list(shape)}); "
                "it belongs to another variant of this architecture, or is incomplete"
            )
        stored_shape = self._source.shape(name)
        if stored_shape != tuple(shape):
            raise InvalidFileError(
                f"tensor {name!r} has shape {list(stored_shape)}, but the model's configuration "
                f"asks for {list(shape)}"
            )

    def _mark_taken(self, names: Sequence[str]) -> None:
        """Note that these tensors have been read, and what was read copied."""
        for name in names:
            # Else the whole file would be in memory beside what has been made of it.
            if isinstance(self._source, MappedSource):
                self._source.release(name)
            if name not in self._taken:
                self._taken.add(name)
                self._progress.advance(1)

    def finish(self) -> None:
        """Refuse tensors that the model did not take: it would compute something else.

        An output projection beside tied embeddings repeats them, and rotary frequencies and
        attention masks are computed; these may be left.
        """
        self._progress.close()
        give_back_freed_memory()
        left = sorted(
            name
            for name in self._names - self._taken
            if name != _OUTPUT_PROJECTION and not _RECOMPUTED.search(name)
        )
        if left:
            shown = ", ".join(left[:_MAX_NAMES_SHOWN])
            if len(left) > _MAX_NAMES_SHOWN:
                shown += f" and {len(left) - _MAX_NAMES_SHOWN} more"
            raise UnsupportedModelError(
                f"the checkpoint holds {len(left)} tensor(s) that this architecture does not use: "
                f"{shown}"
            )
