from __future__ import annotations

import sys
import time

import pytest

from pagemill.bench.peers.start_time import seconds_to_first_byte
from pagemill.errors import BenchmarkError


def test_the_time_ends_with_the_first_byte_and_not_with_the_process() -> None:
    code = (
        "import os, time; time.sleep(0.3); os.write(1, b'a'); time.sleep(1.5); print(' b' * 9999)"
    )
    began = time.perf_counter()
    seconds = seconds_to_first_byte([sys.executable, "-c", code], {})
    assert 0.3 <= seconds < (time.perf_counter() - began) - 1.2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no model')", "ended with 1 and printed nothing: no model"),
        ("pass", "ended with 0 and printed nothing"),
        ("print('a'); raise SystemExit(3)", "ended with 3 and printed something"),
    ],
)
def test_a_program_that_fails_has_no_time(code: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        seconds_to_first_byte([sys.executable, "-c", code], {})
