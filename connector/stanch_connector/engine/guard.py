"""Law 9: an exception of ours is caught, counted and logged once a minute, and never reaches the engine.

A hook that fails FAILURES_IN_A_ROW times without a success between turns the whole kit off in this
process, for good: its hooks then do nothing, and `disabled` says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

FAILURES_IN_A_ROW: Final = 20
LOG_EVERY_SECONDS: Final = 60.0
# Hooks are named in our code, so there are few; a mistake of ours must not grow without bound either.
MAX_NAMES: Final = 64

# Below vLLM's own logger, so that it goes where vLLM's lines go.
logger = logging.getLogger("vllm.stanch")


class Guard:
    """Counts the failures of the kit's hooks. Touched by one thread each; a lost count under a race is
    harmless.

    errors: exceptions caught so far, by hook; total: of all hooks. disabled: why the kit is off here, None
    while it is on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.errors: dict[str, int] = {}
        self.total = 0
        self.disabled: str | None = None
        self._in_a_row: dict[str, int] = {}
        self._logged: dict[str, float] = {}
        self._clock = clock

    def failed(self, hook: str, error: BaseException) -> None:
        """Count one failure. Never raises."""
        try:
            if hook not in self.errors and len(self.errors) >= MAX_NAMES:
                hook = "other"
            self.errors[hook] = self.errors.get(hook, 0) + 1
            self.total += 1
            self._in_a_row[hook] = self._in_a_row.get(hook, 0) + 1
            # Only the kind of the exception: its text might quote what a client sent.
            what = type(error).__name__
            if self.disabled is None and self._in_a_row[hook] >= FAILURES_IN_A_ROW:
                self.disabled = f"{hook} failed {FAILURES_IN_A_ROW} times in a row ({what})"
                logger.error("stanch: the kit turned itself off: %s", self.disabled)
            now = self._clock()
            last = self._logged.get(hook)
            if last is None or now - last >= LOG_EVERY_SECONDS:
                self._logged[hook] = now
                logger.warning("stanch: %s failed: %s (%d so far)", hook, what, self.errors[hook])
                logger.debug("stanch: %s", hook, exc_info=error)
        except Exception:
            pass

    def worked(self, hook: str) -> None:
        """One success: the row of failures is broken."""
        if self._in_a_row:
            self._in_a_row.pop(hook, None)
