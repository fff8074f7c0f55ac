"""The time of a process."""

from __future__ import annotations

import time


class Clock:
    """Unix time that never steps back: the wall clock at the start, the monotonic one from then on."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()
