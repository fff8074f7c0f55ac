"""The entry point of group `vllm.general_plugins`. vLLM calls register() in the API server, in each
EngineCore and in each worker, once per process, on the way to its own start. Importing this module has
no effect.

In the process that makes an EngineCore it adds one utility method to the class and lets each new
scheduler get its kit; it imports vLLM's engine only where that is loaded anyway. In each process it lets a
worker's NIXL connector get its rank's part of a release.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import sys
from typing import Any, Final

from stanch_connector.apiserver import boot
from stanch_connector.engine.guard import Guard

UTILITY: Final = "stanch_ask"
CORE_MODULE: Final = "vllm.v1.engine.core"
# Set on vLLM's factory of connectors once it is wrapped.
WRAPPED: Final = "_stanch_wrapped"

logger = logging.getLogger("vllm.stanch")


def register() -> None:
    """Never raises; may be called again."""
    guard = Guard()
    try:
        boot.boot_id()
        if multiprocessing.parent_process() is None or CORE_MODULE in sys.modules:
            install(guard)
    except Exception as error:
        guard.failed("register", error)
        logger.warning("stanch: nothing was added to this vLLM")
        return
    try:
        install_rank(guard)
    except Exception as error:
        guard.failed("register.rank", error)
        logger.warning("stanch: nothing can be released from this vLLM")


def install(guard: Guard) -> None:
    """Add the utility method and the scheduler's hooks; does nothing where they are there already.

    Raises whatever vLLM's layout makes it raise, before it has changed anything.
    """
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore, UTILITY):
        return

    from stanch_connector.engine.kit import answer, kit_of

    construct = Scheduler.__init__

    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        try:
            kit_of(self, guard)
        except Exception as error:
            guard.failed("attach", error)

    def stanch_ask(self: Any, question: str, args: str = "{}") -> str:
        return answer(self, question, guard, args)

    setattr(EngineCore, UTILITY, stanch_ask)
    Scheduler.__init__ = constructed


def install_rank(guard: Guard) -> None:
    """Let each connector that a worker makes get its rank.Rank. Raises whatever vLLM's layout makes it raise,
    before it has changed anything."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if hasattr(KVConnectorFactory, WRAPPED):
        return

    from stanch_connector.engine import rank
    from stanch_connector.engine.seams import parts_within

    make = KVConnectorFactory.create_connector

    @functools.wraps(make)
    def create_connector(*args: Any, **kwargs: Any) -> Any:
        connector = make(*args, **kwargs)
        try:
            rank.attach(parts_within(connector), guard)
        except Exception as error:
            guard.failed("rank.attach", error)
        return connector

    KVConnectorFactory.create_connector = staticmethod(create_connector)
    setattr(KVConnectorFactory, WRAPPED, True)
