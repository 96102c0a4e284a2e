from __future__ import annotations

import pytest

from pagemill import kernels
from pagemill.kernels import native


def test_the_description_names_the_instruction_set() -> None:
    library = native.load()
    assert library is not None
    assert kernels.description() == f"native kernels for {library.isa}"


def test_without_a_library_the_description_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_load", lambda: (None, "no compiler"))
    assert kernels.description() == "pytorch reference kernels (no compiler)"
