"""Contenders whose engine is ``fake_driver.py``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagemill.bench.peers.contenders import DRIVERS, Contender
from pagemill.bench.peers.driver import Driver

FAKE_DRIVER = Path(__file__).parent / "fake_driver.py"


@dataclass(frozen=True)
class FakeContender(Contender):
    """A contender that claims figures."""

    @property
    def driver(self) -> Path:
        return FAKE_DRIVER


def fake(peer: str, setting: str = "", weights: str = "4-bit", **options: Any) -> FakeContender:
    return FakeContender(peer, setting, weights, Path(sys.executable), options)


def start(contender: Contender, log: Path) -> Driver:
    driver = Driver(
        contender.name, contender.command(), contender.process_environment(), log / "log"
    )
    driver.wait_until_ready(60)
    return driver


def start_script(code: str, log: Path) -> Driver:
    """A driver that speaks as ``code`` says."""
    return Driver("odd", [sys.executable, "-c", code], {}, log / "log")


__all__ = ["DRIVERS", "FakeContender", "fake", "start", "start_script"]
