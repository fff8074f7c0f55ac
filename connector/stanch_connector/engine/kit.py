"""The kit of one EngineCore: its ledger, its guard, and the answers to the API server's questions.

An answer is JSON text, so that it passes vLLM's serializer whatever its version, and a question never
raises: vLLM would log a stack trace for each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from stanch_connector.engine import hooks, layout, listing, seams
from stanch_connector.engine.guard import Guard
from stanch_connector.ledger import Ledger

ATTRIBUTE: Final = "_stanch_kit"


class Kit:
    """Belongs to one scheduler, lives in its process, is called in its thread. unknown: why nothing was
    hooked."""

    def __init__(self, scheduler: Any, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self.guard = guard
        self.ledger = Ledger()
        self.unknown: str | None = None
        self._scheduler = scheduler
        self._clock = clock
        try:
            hooks.attach(scheduler, self.ledger, guard, clock)
        except layout.UnknownLayoutError as error:
            self.unknown = str(error)
        self._randomized = layout.ids_are_randomized()

    def requests(self) -> dict[str, Any]:
        """{"requests": [RequestEntry]}, or {"error": sentence} where there is no list to be had."""
        if self.unknown is not None:
            return {"error": f"no list: {self.unknown}"}
        if self.guard.disabled is not None:
            return {"error": f"no list: the kit turned itself off: {self.guard.disabled}"}
        now = self._clock()
        return {"requests": listing.read(self._scheduler, self.ledger, now, randomized=self._randomized)}

    def summary(self) -> dict[str, Any]:
        """What the metrics show of this rank: listing.SUMMARY where there is a list, errors, fix."""
        fix, _ = seams.fix_of(self._scheduler)
        errors = seams.errors_of(self._scheduler, self.guard)
        said: dict[str, Any] = {"errors": sum(errors.values()), "fix": fix}
        if self.unknown is None and self.guard.disabled is None:
            said |= listing.summary(self._scheduler, self.ledger, self._clock())
        return said

    def state(self) -> dict[str, Any]:
        """This rank's part of KitState."""
        fix, reason = seams.fix_of(self._scheduler)
        return {
            "fix": fix,
            "fixReason": reason,
            "errors": seams.errors_of(self._scheduler, self.guard),
            "disabled": self.guard.disabled or self.unknown,
            "ledger": len(self.ledger),
            "ledgerOverflowed": self.ledger.overflowed,
        }


def answer(core: Any, question: str, guard: Guard) -> str:
    """JSON text with the answer to "requests", "state" or "summary" of an EngineCore; {"error": sentence}
    where it fails."""
    try:
        kit = kit_of(core.scheduler, guard)
        questions = {"requests": kit.requests, "state": kit.state, "summary": kit.summary}
        if question not in questions:
            return json.dumps({"error": "this kit does not know the question"})
        text = json.dumps(questions[question]())
    except Exception as error:
        guard.failed("question", error)
        return json.dumps({"error": f"the kit failed: {type(error).__name__}"})
    guard.worked("question")
    return text


def kit_of(scheduler: Any, guard: Guard) -> Kit:
    """The scheduler's kit; made here where the plug-in came too late for its construction."""
    kit = getattr(scheduler, ATTRIBUTE, None)
    if not isinstance(kit, Kit):
        kit = Kit(scheduler, guard)
        setattr(scheduler, ATTRIBUTE, kit)
    return kit
