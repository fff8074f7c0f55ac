"""When each of many targets has its turn. Pure."""

from __future__ import annotations

# So many times in an interval something is asked, if there are more targets than that.
SLOTS = 50


def phase_seconds(index: int, count: int, interval: float) -> float:
    """When in each interval target `index` of `count` has its turn, so that all are spread evenly.

    Many targets go in SLOTS groups: a turn of its own costs a target a third more, most of it for waking up.
    """
    if count <= SLOTS:
        return interval * index / count
    return interval * (index * SLOTS // count) / SLOTS


def following_turn(turn: int, first: float, interval: float, now: float) -> int:
    """The turn after this one (turn k is due at first + k intervals): the next that is not due yet at now."""
    return max(turn, int((now - first) // interval)) + 1
