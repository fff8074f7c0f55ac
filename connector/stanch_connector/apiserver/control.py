"""The seam between the middleware and whoever takes commands (cordon, drain, restart).

`stanch_connector.apiserver.commands.control(boot_id)` returns a Control where that module is there.
Without it the kit lists and tells its state, refuses no request, and is ready whenever vLLM itself is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from stanch_connector.contract import KitState
from stanch_connector.engine.guard import Guard

MODULE = "stanch_connector.apiserver.commands"


class Control(Protocol):
    """What the middleware asks. Every method returns at once and may raise: the middleware counts it,
    and goes on as if there were no Control."""

    def not_ready(self) -> str | None:
        """Why ROUTE_READY says 503 (a cordon lease lives, a restart is under way), None where it does
        not."""

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        """Why a request (its path, its X-Request-Id) gets 503 and `Connection: close`; None: it passes."""

    def opened(self, path: str) -> None:
        """A request was handed on to vLLM; `closed` follows when its answer, streamed or not, has ended."""

    def closed(self, path: str) -> None:
        """See opened."""

    def state(self) -> KitState:
        """Its part of the state: draining, cordoned, cordonIncident, outcomes."""

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        """POST on ROUTE_COMMAND: status and JSON answer. 404 where no token file is set, 401 for a wrong
        one."""


class NoControl:
    """No commands module: nothing is ever cordoned."""

    def not_ready(self) -> str | None:
        return None

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        return None

    def opened(self, path: str) -> None:
        pass

    def closed(self, path: str) -> None:
        pass

    def state(self) -> KitState:
        return {"draining": False, "cordoned": False, "cordonIncident": None, "outcomes": []}

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        return 404, {"error": "commands are not part of this kit"}


def load_control(boot_id: str, guard: Guard) -> Control:
    """The Control of the commands module, or NoControl where it is absent or fails."""
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        return NoControl()
    except Exception as error:
        guard.failed("commands", error)
        return NoControl()
    make = getattr(module, "control", None)
    if make is None:
        return NoControl()
    try:
        return cast("Control", make(boot_id))
    except Exception as error:
        guard.failed("commands", error)
        return NoControl()
