"""The entry point of group `vllm.general_plugins`. vLLM calls register() in the API server, in each
EngineCore and in each worker, once per process, on the way to its own start. Importing this module has
no effect.

In the process that makes an EngineCore it adds one utility method to the class and lets each new
scheduler get its kit. It imports vLLM's engine only where that is loaded anyway; a worker that was
spawned has no use for it.
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

logger = logging.getLogger("vllm.stanch")


def register() -> None:
    """Never raises; may be called again."""
    guard = Guard()
    try:
        boot.boot_id()
        if multiprocessing.parent_process() is not None and CORE_MODULE not in sys.modules:
            return
        install(guard)
    except Exception as error:
        guard.failed("register", error)
        logger.warning("stanch: nothing was added to this vLLM")


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

    def stanch_ask(self: Any, question: str) -> str:
        return answer(self, question, guard)

    setattr(EngineCore, UTILITY, stanch_ask)
    Scheduler.__init__ = constructed
