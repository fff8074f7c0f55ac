"""The ledger's eyes: methods of one scheduler object, wrapped on that object only.

Each wrapper notes the event first, under the guard, and then calls vLLM's own method with what it was
given; what that returns or raises goes through untouched. All of them are put on or none.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from stanch_connector.engine import layout
from stanch_connector.engine.guard import Guard
from stanch_connector.ledger import Event, Ledger

Note = Callable[..., None]


def attach(scheduler: Any, ledger: Ledger, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
    """Put the hooks on. Raises UnknownLayoutError before anything is changed."""
    layout.check(scheduler)

    def note(event: Event) -> Note:
        def noted(request: Any, *_: Any, **__: Any) -> None:
            ledger.record(event, request.request_id, clock())

        return noted

    def finished(request: Any, delay_free_blocks: bool | None = None, *_: Any, **__: Any) -> None:
        # finish_requests asks for the delay exactly where the request was parked and its receive not
        # reported.
        ledger.record(Event.FINISHED, request.request_id, clock(), parked=bool(delay_free_blocks))

    _wrap(scheduler, "add_request", note(Event.ADDED), guard)
    _wrap(scheduler, "_free_request", finished, guard)
    _wrap(scheduler, "_free_blocks", note(Event.FREED), guard)
    _wrap(scheduler, "_preempt_request", note(Event.PREEMPTED), guard)
    _wrap(scheduler, "_update_waiting_for_remote_kv", note(Event.RESUMED), guard)
    if scheduler.connector is not None:
        _wrap(scheduler.connector, layout.HOOKED_CONNECTOR, note(Event.ALLOCATED), guard)


def _wrap(owner: Any, name: str, note: Note, guard: Guard) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if guard.disabled is None:
            try:
                note(*args, **kwargs)
            except Exception as error:
                guard.failed(name, error)
            else:
                guard.worked(name)
        return original(*args, **kwargs)

    setattr(owner, name, hooked)
