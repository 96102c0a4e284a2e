"""Medians, ratios and targets, from what was measured. Pure functions over the JSON result.

A ratio is ours, in our best setting, to a peer's: the median over rounds of the ratio within a
round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagemill.bench.peers.contenders import OURS

QUANTIZED = ("4-bit", "8-bit")
ALLOWED_BYTES = 450e6
"""Resident memory beyond weights and KV pool."""
MIN_BANDWIDTH_SHARE = 0.8
MIN_NEIGHBOUR_SHARE = 0.45
MAX_START_S, MAX_BEYOND_TORCH_S = 3.0, 1.0


@dataclass(frozen=True)
class Target:
    """What ours is to be, as a multiple of the best peer's figure."""

    bound: float
    is_upper: bool = False
    """The ratio is to be at most ``bound``; otherwise at least."""
    peers: Sequence[str] | None = None
    """Only these count; None: all."""
    weights: Sequence[str] | None = None
    """Only settings with these count; None: all."""

    def met(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio <= self.bound if self.is_upper else ratio >= self.bound


TARGETS: Mapping[str, Target] = {
    "S1": Target(2.0, weights=QUANTIZED),
    "S2": Target(0.6, is_upper=True, weights=QUANTIZED),
    "S3": Target(2.0),
    "S4": Target(0.4, is_upper=True),
    "S1-float32": Target(2.0, peers=("transformers",)),
    "S3-float32": Target(2.0, peers=("transformers",)),
    "S1-bfloat16": Target(2.0, peers=("transformers",)),
    "S3-bfloat16": Target(2.0, peers=("transformers",)),
}
"""S5 has no entry: it is held against our own S3."""


@dataclass(frozen=True)
class Standing:
    """One contender in one race."""

    name: str
    peer: str
    setting: str
    weights: str
    figures: Mapping[int, float]
    """By round."""
    failed: str | None
    """Why it is out; None if it is not."""
    foreign_share: float | None
    """The largest share of the machine that others had in any of the runs."""
    ratio: float | None = None
    """Ours to this one's; None for ours, and where no round has both."""

    @property
    def median(self) -> float | None:
        """Of its figures; None if it has none, or failed in one."""
        if self.failed is not None or not self.figures:
            return None
        return statistics.median(self.figures.values())


@dataclass(frozen=True)
class RaceSummary:
    """One race."""

    name: str
    title: str
    unit: str
    standings: Sequence[Standing]

    @property
    def ours(self) -> Standing | None:
        """This engine; None if it took no part."""
        return self.best_of(OURS)

    def best_of(self, peer: str, target: Target | None = None) -> Standing | None:
        """A peer's best setting among those that ran to the end; else one that failed, or None."""
        return self._best([s for s in self.standings if s.peer == peer], target)

    def best_peer(self) -> Standing | None:
        """The best of all peers that the race's target counts."""
        return self._best([s for s in self.standings if s.peer != OURS], TARGETS.get(self.name))

    def met(self) -> bool | None:
        """Whether ours is as good as its target asks; None if there is none or nobody to beat."""
        target, best = TARGETS.get(self.name), self.best_peer()
        if target is None or best is None or best.median is None:
            return None
        if self.ours is None or self.ours.median is None:
            return False
        return best.ratio is not None and target.met(best.ratio)

    def _best(self, standings: Sequence[Standing], target: Target | None) -> Standing | None:
        counted = [
            s
            for s in standings
            if target is None
            or (
                (target.peers is None or s.peer in target.peers)
                and (target.weights is None or s.weights in target.weights)
            )
        ]
        # A setting that ran in the first round only was not among its peer's best.
        rounds = max((len(s.figures) for s in counted if s.median is not None), default=0)
        ran = [s for s in counted if s.median is not None and len(s.figures) == rounds]
        if not ran:
            return counted[0] if counted else None
        sign = 1 if self.unit == "tok/s" else -1
        return max(ran, key=lambda s: sign * (s.median or 0.0))


def summarize(race: Mapping[str, Any]) -> RaceSummary:
    """A race of the JSON result."""
    runs = race["runs"]
    contenders = race["contenders"]
    standings = [_standing(name, about, runs) for name, about in contenders.items()]
    without_ratios = RaceSummary(race["name"], race["title"], race["unit"], standings)
    ours = {} if without_ratios.ours is None else without_ratios.ours.figures
    return replace(without_ratios, standings=[_against(ours, s) for s in standings])


def _against(ours: Mapping[int, float], standing: Standing) -> Standing:
    """With the ratio of our figures, by round, to those of a peer."""
    shared = ours.keys() & standing.figures.keys()
    if standing.peer == OURS or not shared:
        return standing
    ratio = statistics.median(ours[number] / standing.figures[number] for number in shared)
    return replace(standing, ratio=ratio)


def _standing(
    name: str, about: Mapping[str, Any], all_runs: Sequence[Mapping[str, Any]]
) -> Standing:
    runs = [run for run in all_runs if run["contender"] == name]
    figures = {run["round"]: run["figure"] for run in runs if "figure" in run}
    shares = [run["cpu"]["foreign_share"] for run in runs if "cpu" in run]
    return Standing(
        name=name,
        peer=about["peer"],
        setting=about["setting"],
        weights=about["weights"],
        figures=figures,
        failed=next((run["failed"] for run in runs if "failed" in run), None),
        foreign_share=max((s for s in shares if s is not None), default=None),
    )


def bandwidth_share(race: RaceSummary, found: Mapping[str, Any]) -> float | None:
    """Bytes that ours read a second, as a share of what the machine does; median over rounds."""
    if race.ours is None or race.ours.median is None:
        return None
    speeds: list[float] = found["read_bytes_per_second"]
    bytes_per_token: float = found["bytes_per_token"]
    return statistics.median(
        figure * bytes_per_token / speeds[number] for number, figure in race.ours.figures.items()
    )


def quiet_shares(noisy: RaceSummary, quiet: RaceSummary) -> dict[str, float]:
    """By contender: its figure beside a neighbour as a share of its figure without."""
    medians = {s.name: s.median for s in quiet.standings}
    return {
        s.name: s.median / alone
        for s in noisy.standings
        if s.median is not None and (alone := medians.get(s.name))
    }
