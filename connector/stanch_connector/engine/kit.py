"""The kit of one EngineCore: its ledger, its guard, and the answers to the API server's questions.

An answer is JSON text, so that it passes vLLM's serializer whatever its version, and a question never
raises: vLLM would log a stack trace for each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from stanch_connector.contract import RequestEntry
from stanch_connector.engine import hooks, layout, listing, releasing, seams
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.releaser import Releaser
from stanch_connector.ledger import Ledger

ATTRIBUTE: Final = "_stanch_kit"


class NoKitError(Exception):
    """The kit of this scheduler failed while it was made."""


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
        self.releaser = Releaser(scheduler, guard, clock)
        self._randomized = layout.ids_are_randomized()

    def requests(self) -> dict[str, Any]:
        """{"requests": [RequestEntry]}, or {"error": sentence} where there is no list to be had."""
        return self._without_list() or {"requests": self._entries()}

    def inquire(self, core: Any, args: releasing.Args) -> dict[str, Any]:
        """See releasing.inquire; {"error": sentence} where there is no list to be had."""
        return self._without_list() or releasing.inquire(self.releaser, self._entries, args)

    def release(self, core: Any, args: releasing.Args) -> dict[str, Any]:
        """releasing.Released; {"error": sentence} where there is no list to be had."""
        return self._without_list() or dict(
            releasing.release(self.releaser, self.guard, core, self._entries(), args)
        )

    def _without_list(self) -> dict[str, Any] | None:
        if self.unknown is not None:
            return {"error": f"no list: {self.unknown}"}
        if self.guard.disabled is not None:
            return {"error": f"no list: the kit turned itself off: {self.guard.disabled}"}
        return None

    def _entries(self) -> list[RequestEntry]:
        return listing.read(
            self._scheduler, self.ledger, self.releaser, self._clock(), randomized=self._randomized
        )

    def summary(self) -> dict[str, Any]:
        """What the metrics show of this rank: listing.SUMMARY where there is a list, errors, fix."""
        fix, _ = seams.fix_of(self._scheduler)
        said: dict[str, Any] = {"errors": sum(self._errors().values()), "fix": fix, **self._counts()}
        if self.unknown is None and self.guard.disabled is None:
            said |= listing.summary(self._scheduler, self.ledger, self._clock())
        return said

    def state(self) -> dict[str, Any]:
        """This rank's part of KitState."""
        fix, reason = seams.fix_of(self._scheduler)
        return {
            "fix": fix,
            "fixReason": reason,
            "engineId": seams.engine_id_of(self._scheduler),
            "errors": self._errors(),
            **self._counts(),
            "disabled": self.guard.disabled or self.unknown,
            "ledger": len(self.ledger),
            "ledgerOverflowed": self.ledger.overflowed,
        }

    def _counts(self) -> dict[str, Any]:
        releaser = self.releaser
        return {
            "fixHits": releaser.hits(),
            "releases": dict(releaser.released),
            "refusals": dict(releaser.refused),
        }

    def _errors(self) -> dict[str, int]:
        errors = seams.errors_of(self._scheduler, self.guard)
        for hook, count in self.releaser.errors().items():
            errors[hook] = errors.get(hook, 0) + count
        return errors


def answer(core: Any, question: str, guard: Guard, args: str = "{}") -> str:
    """JSON text with the answer of an EngineCore to "requests", "state", "summary", or, with releasing.Args
    as JSON, to "inquire" and "release"; {"error": sentence} where it fails."""
    try:
        kit = kit_of(core.scheduler, guard)
        questions = {"requests": kit.requests, "state": kit.state, "summary": kit.summary}
        orders = {"inquire": kit.inquire, "release": kit.release}
        if question in orders:
            text = json.dumps(orders[question](core, json.loads(args)))
        elif question in questions:
            text = json.dumps(questions[question]())
        else:
            return json.dumps({"error": "this kit does not know the question"})
    except Exception as error:
        guard.failed("question", error)
        return json.dumps({"error": f"the kit failed: {type(error).__name__}"})
    guard.worked("question")
    return text


def kit_of(scheduler: Any, guard: Guard) -> Kit:
    """The scheduler's kit; made here where the plug-in came too late for its construction. Raises NoKitError
    where it could not be made: what was put on by then must not be put on again by every question."""
    kit = getattr(scheduler, ATTRIBUTE, None)
    if kit is None:
        setattr(scheduler, ATTRIBUTE, False)
        kit = Kit(scheduler, guard)
        setattr(scheduler, ATTRIBUTE, kit)
    if not isinstance(kit, Kit):
        raise NoKitError
    return kit
