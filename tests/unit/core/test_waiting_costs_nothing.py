"""Who cannot be admitted in any case is not looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagemill.engine import LLMEngine
from pagemill.kvcache.prefix_cache import PrefixHit
from pagemill.kvcache.sequence_blocks import SequenceBlocks
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import prompt_of, run_to_end, simulated_engine


def count_looks(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the prompts that are looked for, from now on."""
    looks: list[int] = []
    find = engine.kv.find_prefix

    def find_prefix(blocks: SequenceBlocks, token_ids: Sequence[int], max_tokens: int) -> PrefixHit:
        looks.append(len(token_ids))
        return find(blocks, token_ids, max_tokens)

    monkeypatch.setattr(engine.kv, "find_prefix", find_prefix)
    return looks


@pytest.mark.parametrize(
    "options", [{"max_num_seqs": 2}, {"num_kv_blocks": 6}], ids=["slots", "memory"]
)
def test_a_prompt_is_not_looked_for_while_nothing_could_be_admitted(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated_engine(**options)  # type: ignore[arg-type]
    for i in range(2):  # each grows into a third block later
        engine.add_request(f"running {i}", prompt_of(20, i), SamplingParams(max_tokens=20))
    while len(engine.scheduler.decodes) < 2:
        engine.step()
    looks = count_looks(engine, monkeypatch)
    engine.add_request("waits", prompt_of(50, 7), SamplingParams(max_tokens=2))
    for _ in range(5):
        engine.step()
    assert len(engine.scheduler.waiting) == 1
    assert looks == []
    run_to_end(engine)
    assert looks == [50]
    assert engine.stats()["num_requests_finished"]["length"] == 3
