"""Loaded by Python itself in every process of a test engine (this directory is on its PYTHONPATH).

NIXL's Python agent hard-codes `pthrDelay = 0` (nixl 1.5.1, nixl_cu13/_api.py), so that its progress thread
polls without a pause and burns one core per engine. With STANCH_BED_NIXL_DELAY_US set, that many
microseconds are put between two polls: on two cores this is the difference between engines that answer and
engines that starve each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _CalmLoader(Loader):
    """Runs the real loader, then wraps the one function that makes an agent."""

    def __init__(self, real: Loader, delay_us: int) -> None:
        self._real = real
        self._delay_us = delay_us

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        binding: Any = module.nixlBind
        make_agent = binding.nixlAgent

        def make_calm_agent(name: str, config: Any) -> Any:
            config.pthrDelay = self._delay_us
            return make_agent(name, config)

        binding.nixlAgent = make_calm_agent


class _CalmFinder(MetaPathFinder):
    """Steps in for `nixl_cu12._api`, `nixl_cu13._api` ... and for nothing else."""

    def __init__(self, delay_us: int) -> None:
        self._delay_us = delay_us

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (fullname.startswith("nixl_cu") and fullname.endswith("._api")):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CalmLoader(spec.loader, self._delay_us)
        return spec


_delay = os.environ.get("STANCH_BED_NIXL_DELAY_US")
if _delay:
    sys.meta_path.insert(0, _CalmFinder(int(_delay)))
