"""``pagemill info``: what would run, where, with which kernels, and how many blocks fit.

Only headers are read: no weights are loaded.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from pagemill.cli.opening import announced
from pagemill.config import EngineConfig
from pagemill.errors import ModelError

Report = dict[str, dict[str, Any]]
"""Section to name to value; names carry their units, as everywhere."""


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """A parsed ``pagemill info``; call it to run it."""

    config: EngineConfig
    is_default: bool
    """The user named no model, so one that cannot be had is no failure."""
    as_json: bool = False

    def __call__(self) -> int:
        """Print the report on standard output; returns the exit code."""
        with announced("reading …"):
            report = self._report()
        if self.as_json:
            sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        else:
            from rich.console import Console

            from pagemill.cli.info_table import print_report

            print_report(report, Console(soft_wrap=True, highlight=False))
        return 0

    def _report(self) -> Report:
        if not self.is_default:
            # A name that leads nowhere is told before torch is imported, which takes seconds.
            from pagemill.loading.sources import resolve_model

            resolve_model(self.config.model)

        from pagemill.cli.model_report import describe_environment, describe_model

        report: Report = {"environment": describe_environment(self.config)}
        try:
            report |= describe_model(self.config)
        except ModelError as error:
            if not self.is_default:
                raise
            report["model"] = {"name": self.config.model, "not_available": str(error)}
        return report
