"""The seam between the middleware and whoever takes commands (cordon, drain, restart).

`stanch_connector.apiserver.gate.serve_gate(boot_id)` returns a Control with its watcher running. Without it
the kit lists and tells its state, refuses no request, and is ready whenever vLLM itself is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from stanch_connector.contract import KitState
from stanch_connector.engine.guard import Guard

MODULE = "stanch_connector.apiserver.gate"
FACTORY = "serve_gate"


class Control(Protocol):
    """What the middleware asks. Every method returns at once and may raise: the middleware counts it,
    and goes on as if there were no Control. releaser: see gate.py."""

    releaser: Any

    def not_ready(self) -> str | None:
        """Why ROUTE_READY says 503 (a cordon lease lives, a restart is under way), None where it does
        not."""

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        """Why a request (its path, its X-Request-Id) gets 503 and `Connection: close`; None: it passes."""

    def opened(self) -> None:
        """A request for work was handed on to vLLM; `closed` follows when its answer has ended, streamed
        or not."""

    def closed(self) -> None:
        """See opened."""

    def state(self) -> KitState:
        """Its part of the state: draining, cordoned, cordonIncident, outcomes."""

    def access(self, authorization: str | None) -> tuple[int, Mapping[str, Any]] | None:
        """None where this value of Authorization may command; else what a POST gets, before its body is
        read."""

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        """POST on ROUTE_COMMAND: status and JSON answer. 404 where no token file is set, 401 for a wrong
        one."""


class NoControl:
    """No commands module: nothing is ever cordoned."""

    releaser: Any = None

    def not_ready(self) -> str | None:
        return None

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        return None

    def opened(self) -> None:
        pass

    def closed(self) -> None:
        pass

    def state(self) -> KitState:
        return {"draining": False, "cordoned": False, "cordonIncident": None, "outcomes": []}

    def access(self, authorization: str | None) -> tuple[int, Mapping[str, Any]] | None:
        return 404, {"error": "commands are not part of this kit"}

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        return 404, {"error": "commands are not part of this kit"}


def load_control(boot_id: str, guard: Guard) -> Control:
    """The Control of the gate, or NoControl where it is absent or fails."""
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        return NoControl()
    except Exception as error:
        guard.failed("gate", error)
        return NoControl()
    make = getattr(module, FACTORY, None)
    if make is None:
        return NoControl()
    try:
        return cast("Control", make(boot_id))
    except Exception as error:
        guard.failed("gate", error)
        return NoControl()
