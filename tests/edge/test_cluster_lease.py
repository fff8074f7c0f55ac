"""What a Lease says and what to do about it: step by step, and as a whole with hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stanch.edge.cluster.lease import ACT_SHARE, RENEW_SHARE, Seen, Step, see, step, written

pytestmark = pytest.mark.unit

SECONDS = 15.0


def lease(holder: str | None = "other", version: str = "1", lasts: Any = 15) -> dict[str, Any]:
    return {
        "metadata": {"name": "stanch", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": lasts},
    }


@pytest.mark.parametrize(
    ("found", "since", "expected"),
    [
        (lease("me"), 0.0, Step.RENEW),
        (lease("other"), 100.0, Step.WAIT),
        (lease("other"), 85.1, Step.WAIT),
        (lease("other"), 85.0, Step.TAKE),
        (lease("other", lasts=1), 99.0, Step.TAKE),
        (lease("other", lasts=None), 100.0, Step.TAKE),
        (lease(""), 100.0, Step.TAKE),
        (lease(None), 100.0, Step.TAKE),
        ({"metadata": {"resourceVersion": "1"}}, 100.0, Step.TAKE),
        ({"metadata": {"resourceVersion": "1"}, "spec": None}, 100.0, Step.TAKE),
    ],
    ids=["ours", "new", "nearly", "over", "short", "no end", "given up", "null", "no spec", "null spec"],
)
def test_step(found: dict[str, Any], since: float, expected: Step) -> None:
    assert step(Seen(found, since), "me", 100.0) is expected


def test_a_lease_that_changed_begins_anew_and_an_unchanged_one_grows_older() -> None:
    first = see(None, lease(version="1"), 10.0)
    assert see(first, lease(version="1"), 20.0).since == 10.0
    assert see(first, lease(version="2"), 20.0).since == 20.0


def test_written_keeps_when_it_was_taken_and_counts_who_took_it() -> None:
    new = written("stanch", "ns", None, "me", 15.0, 1000.0)
    assert new["metadata"] == {"name": "stanch", "namespace": "ns"}
    assert new["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "1970-01-01T00:16:40.000000Z",
        "renewTime": "1970-01-01T00:16:40.000000Z",
        "leaseTransitions": 0,
    }
    new["metadata"]["resourceVersion"] = "7"
    renewed = written("stanch", "ns", new, "me", 15.0, 1003.0)
    assert renewed["metadata"]["resourceVersion"] == "7", "only one of two candidates can write it"
    assert renewed["spec"]["acquireTime"] == new["spec"]["acquireTime"]
    assert renewed["spec"]["renewTime"] == "1970-01-01T00:16:43.000000Z"
    taken = written("stanch", "ns", renewed | {"metadata": new["metadata"]}, "other", 0.2, 1010.0)
    assert taken["spec"]["leaseTransitions"] == 1
    assert taken["spec"]["acquireTime"] == "1970-01-01T00:16:50.000000Z"
    assert taken["spec"]["leaseDurationSeconds"] == 1
    given_up = written("stanch", "ns", taken | {"metadata": new["metadata"]}, "", 15.0, 1011.0)
    assert given_up["spec"]["holderIdentity"] == ""
    assert given_up["spec"]["leaseTransitions"] == 1


@dataclass
class Candidate:
    """What election.py does with these functions, over a server that is a dictionary. offset: its clock's."""

    name: str
    offset: float
    seen: Seen | None = None
    until: float = -1.0

    def turn(self, server: Server, at: float, latency: float, reaches: bool) -> None:
        """A look and perhaps a write, begun at `at`; each takes `latency`, and the server acts in its
        midst."""
        if not reaches:
            return
        read = at + latency
        found = server.lease
        if found is not None:
            self.seen = see(self.seen, found, read + self.offset)
            if step(self.seen, self.name, read + self.offset) is Step.WAIT:
                self.until = -1.0
                return
        sent = read
        server.version += 1
        body = written("stanch", "ns", found, self.name, SECONDS, 0.0)
        body["metadata"]["resourceVersion"] = str(server.version)
        server.lease = body
        self.seen = Seen(body, sent + self.offset)
        self.until = sent + SECONDS * ACT_SHARE

    def leads(self, at: float) -> bool:
        return at < self.until


@dataclass
class Server:
    lease: dict[str, Any] | None = None
    version: int = 0


@dataclass
class Turn:
    who: int
    after: float = field(default=0.0)
    latency: float = field(default=0.0)
    reaches: bool = field(default=True)


turns = st.lists(
    st.builds(
        Turn,
        who=st.integers(0, 1),
        after=st.floats(0.0, SECONDS * RENEW_SHARE),
        latency=st.floats(0.0, SECONDS / 3),
        reaches=st.booleans(),
    ),
    max_size=60,
)


@given(turns, st.floats(-1e6, 1e6))
def test_never_two_at_once_whatever_the_clocks_and_the_network(turns_: list[Turn], skew: float) -> None:
    server, now = Server(), 0.0
    both = [Candidate("a", 0.0), Candidate("b", skew)]
    for turn in turns_:
        now += turn.after
        both[turn.who].turn(server, now, turn.latency, turn.reaches)
        # The other may act on while this one has just begun to.
        begins = now + turn.latency
        assert not all(one.leads(begins) for one in both)
        now = begins
