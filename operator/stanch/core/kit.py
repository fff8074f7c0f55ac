"""What the engine kit says of one engine: which requests hold KV cache, since when, which of them are stuck.

Pure. A report without a list proves nothing: neither that something is stuck nor that nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stanch.core.policy import Policy

WAITS_FOR_KV = "remote_kv"
# So many requests a verdict names at most; how many there are is always said.
NAMED = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of the list, as connector/stanch_connector/contract.py has it.

    id: as its client knows it. age_seconds: in this status. share: of the KV cache, 0..1; None: not said.
    way, refusal: what a release would do to it, or why it would not; refusal_kind: that in a word. None: not
    said.
    """

    id: str
    scheduler_id: str
    status: str
    age_seconds: float
    blocks: int
    waits_for: str | None
    client_gone: bool
    leased: bool
    pinned: bool
    share: float | None = None
    remote_engine: str | None = None
    way: str | None = None
    refusal: str | None = None
    refusal_kind: str | None = None

    @property
    def stuck(self) -> bool:
        """Whether it is parked, or holds blocks after its end; not what is leased or pinned for a reader."""
        if self.leased or self.pinned:
            return False
        return self.waits_for == WAITS_FOR_KV or (self.client_gone and self.blocks > 0)


@dataclass(frozen=True, slots=True)
class KitReport:
    """What the kit said at t (seconds, as the samples' t).

    entries: the whole list; None where there is none, and then problem says why, as a sentence's end ("its
    kit ..."). absent: because the engine has no kit. draining: it turns new requests away.
    """

    t: float
    boot_id: str = ""
    entries: tuple[Entry, ...] | None = None
    problem: str | None = None
    absent: bool = False
    draining: bool = False

    def stuck(self, seconds: float = 0.0) -> tuple[Entry, ...]:
        """Those stuck for so long, the longest first; none where there is no list."""
        found = [e for e in self.entries or () if e.stuck and e.age_seconds >= seconds]
        return tuple(sorted(found, key=lambda e: -e.age_seconds))

    @property
    def pins(self) -> bool:
        """Whether anything may be pinned: so it is where there is no list."""
        return self.entries is None or any(e.pinned for e in self.entries)


@dataclass(frozen=True, slots=True)
class Stuck:
    """The stuck requests that a verdict names. total_blocks: of the whole cache, None where it cannot be
    told. named: the longest first, at most NAMED."""

    count: int
    blocks: int
    total_blocks: int | None
    oldest_seconds: float
    named: tuple[Entry, ...]


def summary(entries: tuple[Entry, ...]) -> Stuck | None:
    """Of entries that are sorted, the longest stuck first; None of none."""
    if not entries:
        return None
    return Stuck(
        len(entries),
        sum(e.blocks for e in entries),
        total_blocks(entries),
        entries[0].age_seconds,
        entries[:NAMED],
    )


def total_blocks(entries: Iterable[Entry]) -> int | None:
    """How many blocks the whole cache has, by the entry that holds most of it; None where none says so."""
    most = max((e for e in entries if e.share and e.blocks), key=lambda e: e.blocks, default=None)
    return None if most is None or not most.share else round(most.blocks / most.share)


def share(entries: Iterable[Entry]) -> float:
    """Of the cache, 0..1. A prefix that several share counts for each; an entry without it counts nothing."""
    return min(1.0, sum(e.share or 0.0 for e in entries))


def usable(
    report: KitReport | None, t: float, policy: Policy, restarted_t: float | None = None
) -> KitReport | None:
    """The report, if it is about the process that was read at t, and of about that time."""
    if report is None or abs(t - report.t) > policy.gap_seconds:
        return None
    return None if restarted_t is not None and report.t < restarted_t else report
