from __future__ import annotations

from tests.unit.service.conftest import tiny_model as tiny_model
