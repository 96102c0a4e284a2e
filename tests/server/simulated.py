"""``python -m tests.server.simulated serve …``: the whole command on a simulated engine.

The environment says how long the model takes to load (``LOAD_SECONDS``) and a step
(``STEP_SECONDS``).
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType

from pagemill.cli import main
from pagemill.config import EngineConfig
from tests.unit.server.http_helpers import TOKENIZER, new_engine
from tests.unit.server.serving import Loaded


def build_engine(config: EngineConfig, *, progress: bool) -> Loaded:
    time.sleep(float(os.environ.get("LOAD_SECONDS", "0")))
    engine = new_engine(
        step_seconds=float(os.environ.get("STEP_SECONDS", "0")),
        num_kv_blocks=config.num_kv_blocks or 64,
        max_num_seqs=config.max_num_seqs,
    )
    return Loaded(engine, TOKENIZER)


if __name__ == "__main__":
    module = ModuleType("pagemill.assembly")
    vars(module)["build_engine"] = build_engine
    sys.modules["pagemill.assembly"] = module
    sys.exit(main())
