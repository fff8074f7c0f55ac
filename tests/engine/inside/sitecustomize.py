"""Loaded by Python itself in every process of a test engine (this directory is on its PYTHONPATH).

It makes engines bearable on two shared cores, each thing where its environment variable is set:

STANCH_BED_NIXL_DELAY_US  NIXL's Python agent hard-codes `pthrDelay = 0` (nixl 1.5.1, nixl_cu13/_api.py), so
    that its progress thread polls without a pause and burns one core per engine. This many microseconds are
    put between two polls.
STANCH_BED_YIELD_US  vLLM's processes wait for each other in loops around os.sched_yield (0.29.0 and 0.32.0,
    distributed/utils.py). Newer kernels (seen with 6.18) make a thread that yields forfeit its turn, so where
    more threads want to run than there are cores, such a loop was starved for 5 to 20 s at a time, and the
    first NIXL handshake took up to 30 s. A sleep of this many microseconds instead has no such price.
"""

from __future__ import annotations

import os
import sys
import time
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

_nap = os.environ.get("STANCH_BED_YIELD_US")
if _nap:
    _nap_s = int(_nap) / 1e6

    def _sleep_instead() -> None:
        time.sleep(_nap_s)

    os.sched_yield = _sleep_instead
