"""Measures, inside a test engine, how long the kit's own code runs in each step of the engine.

It stands in the kit's place as vLLM's plug-in and calls the kit's own. Then it looks, on the objects of vLLM
that the kit touches, for functions whose code is the kit's, and times them; whatever such a function calls of
vLLM (the method that it stands before) is taken out again. So it finds every hook, however many there are,
and counts its own clock's readings to the kit.

Every half second of work each process writes KIT_BENCH/PID.json: {"role": "core" or "worker", "steps",
"stepNs", "oursNs", "calls"}, sums since its start.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FunctionType
from typing import Any

VARIABLE = "KIT_BENCH"
WRITE_EVERY_NS = 500_000_000


class Meter:
    """Of one process; its step thread alone touches it."""

    def __init__(self) -> None:
        self.steps = self.step_ns = self.ours_ns = self.calls = 0
        self._inside = False
        self._since = 0
        self._written = 0
        self._counted: tuple[int, int] | None = None

    def ours(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the kit that vLLM calls."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._counted is None:
                return function(*args, **kwargs)
            self._inside, self._since = True, perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ours_ns += perf_counter_ns() - self._since
                self.calls += 1
                self._inside = False

        timed.kit_bench = True  # type: ignore[attr-defined]
        return timed

    def theirs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of vLLM that the kit calls."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                return function(*args, **kwargs)
            self.ours_ns += perf_counter_ns() - self._since
            self._inside = False
            try:
                return function(*args, **kwargs)
            finally:
                self._inside, self._since = True, perf_counter_ns()

        timed.kit_bench = True  # type: ignore[attr-defined]
        return timed

    def step(self, function: Callable[..., Any], role: str) -> Callable[..., Any]:
        """One step. What the kit does between two of them, on the way of a new request, is counted too."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter_ns()
            if self._counted is None:
                self._counted = (0, 0)
            result = function(*args, **kwargs)
            now = perf_counter_ns()
            self.steps += 1
            self.step_ns += now - began
            if now - self._written > WRITE_EVERY_NS:
                self._written = now
                self._write(role)
            return result

        return timed

    def _write(self, role: str) -> None:
        path = Path(os.environ[VARIABLE], f"{os.getpid()}.json")
        new = path.with_suffix(".new")
        new.write_text(
            json.dumps(
                {
                    "role": role,
                    "steps": self.steps,
                    "stepNs": self.step_ns,
                    "oursNs": self.ours_ns,
                    "calls": self.calls,
                }
            )
        )
        new.replace(path)


def is_ours(function: Any) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and "/stanch_connector/" in code.co_filename


def look_at(meter: Meter, thing: Any) -> None:
    """Time what the kit put onto one object of vLLM, or into the class that it gave it."""
    for name, value in list(vars(thing).items()):
        if isinstance(value, FunctionType) and is_ours(value) and not hasattr(value, "kit_bench"):
            _take_out(meter, value)
            setattr(thing, name, meter.ours(value))
    kind = type(thing)
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType) and is_ours(value) and not name.startswith("__"):
            for stock in kind.__mro__[1:]:
                theirs = vars(stock).get(name)
                if isinstance(theirs, FunctionType) and not hasattr(theirs, "kit_bench"):
                    setattr(stock, name, meter.theirs(theirs))
            if not hasattr(value, "kit_bench"):
                setattr(kind, name, meter.ours(value))


def _take_out(meter: Meter, function: FunctionType) -> None:
    """What it calls of vLLM, which it keeps in its closure."""
    for cell in function.__closure__ or ():
        kept = cell.cell_contents
        is_function = isinstance(kept, FunctionType) or hasattr(kept, "__func__")
        if is_function and not is_ours(kept) and not hasattr(kept, "kit_bench"):
            cell.cell_contents = meter.theirs(kept)


def register() -> None:
    """In the place of the kit's own entry point, which it then calls."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from stanch_connector import plugin

    plugin.register()
    meter = Meter()
    construct, create = Scheduler.__init__, KVConnectorFactory.create_connector

    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        for one in (self, self.connector, getattr(self.connector, "connector_scheduler", None)):
            if one is not None:
                look_at(meter, one)

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        connector = create(*args, **kwargs)
        worker = getattr(connector, "connector_worker", None)
        if worker is not None:
            look_at(meter, connector)
            look_at(meter, worker)
        return connector

    Scheduler.__init__ = constructed
    KVConnectorFactory.create_connector = staticmethod(created)
    for name in ("step", "step_with_batch_queue"):
        setattr(EngineCore, name, meter.step(getattr(EngineCore, name), "core"))
    WorkerWrapperBase.execute_model = meter.step(WorkerWrapperBase.execute_model, "worker")
