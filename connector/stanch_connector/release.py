"""Which requests a release may touch, and how. Pure.

Law 9: nothing is released that anything could still write into or read from. So a request is released only
when every rank has said one of two things of it, neither of which can change any more:

    EMPTY  its list of blocks to read was empty in all cache groups, and its producer has been told
    DONE   all its reads were posted, and all of them are done

    way         where
    freed       it has ended, and its client with it: the blocks come back
    completed   its client waits, and every rank said EMPTY: all its KV is here, it goes on
    failed      its client waits, and some rank said DONE: what was read may not be what the others have;
                its client gets an error, the blocks come back
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stanch_connector.contract import Refusal, Way

# Released ids remembered on the scheduler's side and on each rank: about 15 MB at most.
TOMBSTONES: Final = 65_536


class RankState(str, Enum):
    """What one rank says of one request; the value travels."""

    UNKNOWN = "?"
    HANDSHAKE = "H"
    READING = "R"
    FAILED = "F"
    EMPTY = "E"
    DONE = "D"


TERMINAL: Final = frozenset({RankState.EMPTY, RankState.DONE})


@dataclass(frozen=True, slots=True)
class No:
    """Not touched. reason: a sentence for people."""

    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the scheduler knows of one request.

    status: vLLM's name. parked: it waits for remote KV, or ended while it did. ended: finished or aborted.
    awaited: what it waits for is a receive by NIXL that was seen to begin and has not been reported.
    arrived: its receive has been reported already. remote: the engine that its KV comes from.
    """

    status: str
    parked: bool
    ended: bool
    awaited: bool
    leased: bool = False
    pinned: bool = False
    producer: bool = False
    arrived: bool = False
    remote: str | None = None


def judge(facts: Facts, said: Mapping[int, RankState], world_size: int) -> Way | No:
    """What a release does to a request. said: the last word of each rank that has said anything."""
    return _not_stuck(facts) or _by_ranks(facts, said, world_size)


def _not_stuck(facts: Facts) -> No | None:
    if facts.leased:
        return No("leased", "a prefill engine keeps it for its reader until the lease ends")
    if facts.pinned:
        return No("pinned", "the engine keeps it for its next turn until the pin time ends")
    if not facts.parked:
        return No("not-stuck", f"it is not stuck: {facts.status}")
    if facts.arrived:
        return No("not-stuck", "its KV has arrived, and it goes on with the next step")
    if facts.producer:
        return No("producer", "it belongs to a prefill, which nothing of ours may release")
    if not facts.awaited:
        return No("no-adapter", "the kit knows of no receive by NIXL that it waits for")
    return None


def _by_ranks(facts: Facts, said: Mapping[int, RankState], world_size: int) -> Way | No:
    peer = facts.remote or "its producer"
    for state, kind, reason in (
        (
            RankState.FAILED,
            "load-failed",
            "a read from {peer} failed, and may still be going on",
        ),
        (RankState.READING, "reading", "it still reads from {peer}, and NIXL cannot cancel a read"),
        (RankState.HANDSHAKE, "handshake", "it waits for the handshake with {peer}"),
        (RankState.UNKNOWN, "not-started", "it knows of no receive for it: that may still be on its way"),
    ):
        ranks = [rank for rank, one in said.items() if one is state]
        if ranks:
            return No(kind, f"{_ranks(ranks)}: {reason.format(peer=peer)}")  # type: ignore[arg-type]
    if len(said) < world_size:
        return No("not-said", f"{len(said)} of {world_size} ranks have said that nothing is under way for it")
    if facts.ended:
        return "freed"
    return "completed" if all(one is RankState.EMPTY for one in said.values()) else "failed"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


class Tombstones:
    """The ids that were released, the newest TOMBSTONES of them."""

    def __init__(self, capacity: int = TOMBSTONES) -> None:
        self._capacity = capacity
        self._ids: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, ids: Iterable[str]) -> None:
        for one in ids:
            self._ids[one] = None
        while len(self._ids) > self._capacity:
            del self._ids[next(iter(self._ids))]

    def forget(self, ids: Iterable[str]) -> None:
        for one in ids:
            self._ids.pop(one, None)

    def among(self, ids: Iterable[str]) -> Iterator[str]:
        return (one for one in ids if one in self._ids)


class Said:
    """What the ranks said last, by request.

    Asks are numbered. A request that starts anew has a floor: what was asked before that is of its earlier
    life.
    """

    def __init__(self) -> None:
        self.answered: dict[int, int] = {}
        self._states: dict[str, dict[int, RankState]] = {}
        self._floors: dict[str, int] = {}

    def of(self, request_id: str) -> Mapping[int, RankState]:
        return self._states.get(request_id, {})

    def settled(self, request_id: str, world_size: int) -> bool:
        """Whether asking again can change nothing."""
        said = self.of(request_id)
        return len(said) >= world_size and all(one in TERMINAL for one in said.values())

    def heard(self, number: int, world_size: int) -> bool:
        """Whether every rank has answered that ask or a later one."""
        return sum(one >= number for one in self.answered.values()) >= world_size

    def enter(self, rank: int, number: int, states: Mapping[str, str]) -> None:
        """One rank's answer to one ask. Raises ValueError for a state that this kit does not know."""
        self.answered[rank] = max(number, self.answered.get(rank, 0))
        for request_id, value in states.items():
            if number < self._floors.get(request_id, 0):
                continue
            state, said = RankState(value), self._states.setdefault(request_id, {})
            # A rank forgets after a while what it reported; what it said of it stays true.
            if state is not RankState.UNKNOWN or said.get(rank) not in TERMINAL:
                said[rank] = state

    def restart(self, request_id: str, next_number: int) -> None:
        """The request starts a receive of its own (again); next_number: of the first ask that sees it."""
        self._states.pop(request_id, None)
        self._floors[request_id] = next_number

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(ids)
        self._states = {one: said for one, said in self._states.items() if one in kept}
        self._floors = {one: number for one, number in self._floors.items() if one in kept}
