"""The pure rules of a release: what is judged, what the ranks have said, what is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stanch_connector.contract import Refusal, Way
from stanch_connector.release import TERMINAL, TOMBSTONES, Facts, No, RankState, Said, Tombstones, judge

pytestmark = pytest.mark.unit

U, H, R, F, E, D = RankState
STUCK = Facts("WAITING_FOR_REMOTE_KVS", parked=True, ended=False, awaited=True, remote="prefill-3")
ORPHAN = Facts("FINISHED_ABORTED", parked=True, ended=True, awaited=True)

facts = st.builds(
    Facts,
    status=st.sampled_from(["WAITING_FOR_REMOTE_KVS", "FINISHED_ABORTED", "RUNNING"]),
    remote=st.none() | st.just("prefill-3"),
    **{
        name: st.booleans()
        for name in ("parked", "ended", "awaited", "leased", "pinned", "producer", "arrived")
    },
)
world = st.integers(1, 4).flatmap(
    lambda size: st.tuples(
        st.just(size), st.dictionaries(st.integers(0, size - 1), st.sampled_from(RankState), max_size=size)
    )
)


@given(facts, world)
def test_released_means_that_every_rank_said_so(
    facts: Facts, world: tuple[int, dict[int, RankState]]
) -> None:
    size, said = world
    verdict = judge(facts, said, size)
    if isinstance(verdict, No):
        assert verdict.kind in get_args(Refusal)
        assert verdict.reason
        return
    assert verdict in get_args(Way)
    assert len(said) == size
    assert all(one in (E, D) for one in said.values())
    assert facts.parked
    assert facts.awaited
    kept = facts.leased, facts.pinned, facts.producer, facts.arrived
    assert not any(kept)
    if facts.ended:
        assert verdict == "freed"
    else:
        assert (verdict == "completed") == all(one is E for one in said.values())


@given(world)
def test_what_every_rank_said_is_enough(world: tuple[int, dict[int, RankState]]) -> None:
    """The other direction: nothing that may be released is refused."""
    size, said = world
    full = len(said) == size and all(one in TERMINAL for one in said.values())
    assert isinstance(judge(STUCK, said, size), No) != full
    assert isinstance(judge(ORPHAN, said, size), No) != full


@pytest.mark.parametrize(
    ("said", "size", "kind", "words"),
    [
        pytest.param({}, 1, "not-said", "0 of 1", id="nobody has spoken"),
        pytest.param({0: E}, 2, "not-said", "1 of 2", id="a rank is missing"),
        pytest.param({0: D, 1: U}, 2, "not-started", "rank 1:", id="one knows of nothing"),
        pytest.param({0: H, 1: H}, 2, "handshake", "ranks 0, 1: ", id="handshakes"),
        pytest.param(
            {0: R, 1: H}, 2, "reading", "still reads from prefill-3", id="a read before a handshake"
        ),
        pytest.param({0: R, 1: F}, 2, "load-failed", "rank 1:", id="a failure before all"),
        pytest.param({0: F}, 2, "load-failed", "rank 0:", id="a failure before a missing rank"),
    ],
)
def test_refused_by_the_ranks(said: Mapping[int, RankState], size: int, kind: str, words: str) -> None:
    verdict = judge(STUCK, said, size)
    assert isinstance(verdict, No)
    assert verdict.kind == kind
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (Facts("RUNNING", parked=False, ended=False, awaited=False), "not-stuck"),
        (Facts("FINISHED_STOPPED", parked=False, ended=True, awaited=False, leased=True), "leased"),
        (Facts("FINISHED_STOPPED", parked=False, ended=True, awaited=False, pinned=True), "pinned"),
        (Facts("WAITING_FOR_REMOTE_KVS", True, False, False, arrived=True), "not-stuck"),
        (Facts("WAITING_FOR_REMOTE_KVS", True, False, True, producer=True), "producer"),
        (Facts("WAITING_FOR_REMOTE_KVS", True, False, awaited=False), "no-adapter"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.status.lower(),
)
def test_refused_whatever_the_ranks_said(facts: Facts, kind: str) -> None:
    verdict = judge(facts, {0: E}, 1)
    assert isinstance(verdict, No)
    assert verdict.kind == kind


class TestSaid:
    def test_an_answer_of_an_earlier_life_is_ignored(self) -> None:
        said = Said()
        said.enter(0, 4, {"a": "D"})
        said.restart("a", 6)
        assert said.of("a") == {}
        said.enter(0, 5, {"a": "D"})
        assert said.of("a") == {}
        said.enter(0, 6, {"a": "R"})
        assert said.of("a") == {0: R}

    def test_the_last_word_counts(self) -> None:
        said = Said()
        for number, state in enumerate("?HRFED", 1):
            said.enter(0, number, {"a": state})
            assert said.of("a") == {0: RankState(state)}

    def test_a_rank_may_forget_what_it_said_but_not_unsay_it(self) -> None:
        """A rank remembers a bounded number of reports, and is asked again while another one is not done."""
        said = Said()
        said.enter(0, 1, {"a": "D"})
        said.enter(0, 2, {"a": "?"})
        assert said.of("a") == {0: D}
        said.enter(0, 3, {"a": "F"})
        assert said.of("a") == {0: F}

    def test_settled_when_asking_can_change_nothing(self) -> None:
        said = Said()
        said.enter(0, 1, {"a": "D"})
        assert not said.settled("a", 2)
        said.enter(1, 1, {"a": "R"})
        assert not said.settled("a", 2)
        said.enter(1, 2, {"a": "E"})
        assert said.settled("a", 2)

    def test_heard_when_every_rank_has_answered_that_ask_or_a_later_one(self) -> None:
        said = Said()
        said.enter(0, 7, {})
        assert not said.heard(7, 2)
        said.enter(1, 6, {})
        assert not said.heard(7, 2)
        said.enter(1, 8, {})
        assert said.heard(7, 2)
        said.enter(1, 3, {})
        assert said.heard(8, 1)

    def test_a_state_that_this_kit_does_not_know(self) -> None:
        with pytest.raises(ValueError, match="X"):
            Said().enter(0, 1, {"a": "X"})

    def test_keeps_nothing_of_what_is_over(self) -> None:
        said = Said()
        said.restart("a", 1)
        said.restart("b", 1)
        said.enter(0, 1, {"a": "D", "b": "E"})
        said.keep(["b"])
        assert (said.of("a"), said.of("b")) == ({}, {0: E})


class TestTombstones:
    def test_bounded_and_the_oldest_go(self) -> None:
        gone = Tombstones(3)
        gone.add("abcde")
        assert len(gone) == 3
        assert list(gone.among("abcdef")) == ["c", "d", "e"]

    def test_an_id_comes_back(self) -> None:
        gone = Tombstones()
        gone.add(["a", "a", "b"])
        gone.forget(["a", "never"])
        assert "a" not in gone
        assert "b" in gone
        assert len(gone) == 1

    def test_as_many_as_a_kit_remembers(self) -> None:
        gone = Tombstones()
        gone.add(f"cmpl-{number}" for number in range(TOMBSTONES + 10))
        assert len(gone) == TOMBSTONES
        assert "cmpl-9" not in gone
        assert "cmpl-10" in gone
