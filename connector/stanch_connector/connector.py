"""The connector that vLLM loads: `--kv-transfer-config` with

    {"kv_connector": "StanchNixlConnector", "kv_connector_module_path": "stanch_connector.connector", ...}

Importing this module has no effect and imports no vLLM; the class is made when it is first asked for. It is
the stock pull connector of the installed vLLM, with the fix of nixl_fix.py where that is needed and fits.
`kv_connector_extra_config.stanch_connector_patch` is Auto (the default), Always or Never.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from stanch_connector import compat, nixl_fix
from stanch_connector.contract import EXTRA_PATCH, Fix, PatchMode
from stanch_connector.engine.guard import Guard

NAME: Final = "StanchNixlConnector"

# Below vLLM's own logger, whose handlers and level then apply.
logger = logging.getLogger("vllm.stanch")


class ConnectorRefusedError(RuntimeError):
    """The patch mode is Always and the fix cannot be put in."""


def __getattr__(name: str) -> Any:
    if name != NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _installed()


@functools.cache
def _installed() -> Any:
    return build(compat.load())


def build(nixl: compat.Nixl) -> Any:
    """The connector class for this vLLM. Attributes of the class and, once made, of the instance:

    stanch_fix, stanch_fix_reason: contract.Fix and why. stanch_guard: what our hooks raised, by hook.
    """
    choice = compat.choose(nixl)
    # Both before anything is patched, so that a side that cannot be subclassed leaves both stock.
    if choice.fix == "active":
        try:
            sides = (nixl_fix.scheduler_class(nixl.scheduler), nixl_fix.worker_class(nixl.worker))
        except Exception as error:
            choice = compat.Choice("unpatched", f"vLLM {nixl.version}: no subclass ({type(error).__name__})")
    stock = nixl.connector

    class StanchNixlConnector(stock):  # type: ignore[misc,valid-type]
        stanch_fix: Fix = choice.fix
        stanch_fix_reason: str = choice.reason
        stanch_guard: Guard

        # Keeps the stock signature: vLLM's factory looks at it.
        @functools.wraps(stock.__init__)  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            mode = _mode(args, kwargs)
            _refuse_unless_fixed(mode, choice.fix, choice.reason)
            super().__init__(*args, **kwargs)
            self.stanch_guard = Guard()
            if mode == "Never":
                self.stanch_fix = "off"
                self.stanch_fix_reason = f"{EXTRA_PATCH} is Never"
            elif choice.fix == "active":
                self.stanch_fix, self.stanch_fix_reason = _adopt(self, nixl, sides, choice)
            _refuse_unless_fixed(mode, self.stanch_fix, self.stanch_fix_reason)
            level = logging.WARNING if self.stanch_fix == "unpatched" else logging.INFO
            logger.log(level, "Stanch's NIXL connector: %s (%s)", self.stanch_fix, self.stanch_fix_reason)

    # MultiConnector looks the class up in vLLM's registry by this name when it reads statistics.
    StanchNixlConnector.__name__ = stock.__name__
    StanchNixlConnector.__qualname__ = NAME
    StanchNixlConnector.__module__ = __name__
    return StanchNixlConnector


def _adopt(connector: Any, nixl: compat.Nixl, sides: Any, choice: compat.Choice) -> tuple[Fix, str]:
    """Put the fix into the one side that this process has. Leaves it stock where anything is unexpected.

    The sides may differ from each other: a worker leaves alone what no patched scheduler marked, and a mark
    that no patched worker reads has no effect.
    """
    fix: nixl_fix.SchedulerFix | nixl_fix.WorkerFix
    attributes: tuple[str, ...]
    try:
        if connector.connector_scheduler is not None:
            side, stock, patched = connector.connector_scheduler, nixl.scheduler, sides[0]
            fix, attributes = nixl_fix.SchedulerFix(), compat.SCHEDULER_ATTRIBUTES
        else:
            side, stock, patched = connector.connector_worker, nixl.worker, sides[1]
            fix, attributes = nixl_fix.WorkerFix(), compat.WORKER_ATTRIBUTES
        misfit = compat.side_misfit(side, stock, attributes)
        if misfit is None:
            nixl_fix.adopt(side, patched, fix, connector.stanch_guard)
            return choice.fix, choice.reason
    except Exception as error:
        misfit = f"{type(error).__name__} while putting the fix in"
    return "unpatched", f"vLLM {nixl.version} is laid out differently: {misfit}"


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> PatchMode:
    try:
        config = args[0] if args else kwargs["vllm_config"]
        extra = config.kv_transfer_config.kv_connector_extra_config or {}
        return compat.patch_mode(extra.get(EXTRA_PATCH))
    except Exception as error:
        logger.warning("Stanch: the patch mode could not be read (%s): Auto", type(error).__name__)
        return "Auto"


def _refuse_unless_fixed(mode: PatchMode, fix: Fix, reason: str) -> None:
    if mode == "Always" and fix == "unpatched":
        raise ConnectorRefusedError(f"{EXTRA_PATCH} is Always and Stanch's fix cannot be put in: {reason}.")
