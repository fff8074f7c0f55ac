"""The whole demo: a leak planted in a fleet of processes, found, confirmed, healed; what a failure says."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from stanch.core.policy import Policy
from stanch.core.verdict import State
from stanch.edge.demo.fleet import Fleet, Stuck, Traffic
from stanch.edge.demo.repair import Limits
from stanch.edge.demo.story import POLICY, lost, main, run
from stanch.edge.demo.telling import Incident, Probes, Row, Step
from stanch.edge.demo.view import PlainView, folded, story_of, table

pytestmark = pytest.mark.unit

STEPS = ["Observe", "Confirm", "Cordon", "Drain", "Confirm again", "Capture", "Restart", "Verify", "Uncordon"]
WITH_KIT = ["Observe", "Confirm", "Capture", "Release", "Verify"]
# Quick, for the stories that are not to end well.
HASTE = Policy(interval_seconds=0.25).with_hold(2.0)


class Told(PlainView):
    """A plain view that remembers what it was shown."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        super().__init__(Console(file=self.file, soft_wrap=True, highlight=False, markup=False))
        self.boards: list[Sequence[Row]] = []

    def board(self, rows: Sequence[Row], traffic: Traffic | None) -> None:
        self.boards.append(rows)


@pytest.mark.parametrize("kit", [True, False], ids=["release", "restart"])
def test_the_whole_story(kit: bool) -> None:
    out, pids = Told(), list[list[int]]()

    async def play() -> Incident:
        async with Fleet(seed=7, kit=kit) as fleet:
            pids.append([member.pid for member in fleet.engines])
            incident = await asyncio.wait_for(run(fleet, POLICY, out, seed=7), 120)
            pids.append([member.pid for member in fleet.engines])
            return incident

    incident = asyncio.run(play())
    text = out.file.getvalue()
    assert incident.failure is None, text
    assert [step.name for step in incident.steps] == (WITH_KIT if kit else STEPS)
    assert (pids[0] == pids[1]) == kit
    assert not any(step.failed for step in incident.steps)
    assert all(a.end <= b.start for a, b in zip(incident.steps, incident.steps[1:], strict=False))
    # Which comes first depends on when the clients leave: the list's ages begin anew then.
    assert incident.signature in ("HeldFloor", "HeldIdle", *(["ParkedRemoteKV"] if kit else []))
    assert "confirmed" in incident.sentence

    # What the leak swallowed, by name; its blocks are what the watchdog saw held; the rest lost nothing.
    assert incident.stuck is not None
    assert len(incident.stuck) == 4
    assert incident.held_ratio == pytest.approx(sum(held.cache_share for held in incident.stuck))
    assert incident.lost == 0
    assert incident.traffic.answered > 10

    # A liveness probe is blind to all of it.
    assert incident.probes.sent >= 8
    assert incident.probes.ok == incident.probes.sent

    # The watchdog never accused anybody else.
    faults = {row.name for rows in out.boards for row in rows if row.state is State.FAULT}
    assert faults == {incident.engine}
    taken_out = {row.name for rows in out.boards for row in rows if row.out}
    assert taken_out == (set() if kit else {incident.engine})
    assert f"watchdog: fault: {incident.engine} " in text
    assert all(re.match(r" *\d+\.\d s  \S", line) for line in text.splitlines())


def test_a_fleet_that_cannot_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert main(seed=1, plain=True) == 1
    said = capsys.readouterr().err
    assert said.startswith("stanch demo: stanch.edge.demo.engine did not start: ")
    assert len(said.splitlines()) == 1


class Stubborn(Fleet):
    """A fleet of which one means does not work."""

    broken = ""

    async def take_out(self, name: str) -> None:
        if self.broken != "Cordon":
            await super().take_out(name)

    async def restart(self, name: str) -> None:
        if self.broken != "Restart":
            await super().restart(name)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        pytest.param("Cordon", "the router still sends to", id="the router does not listen"),
        pytest.param("Restart", "did not come back", id="the process does not restart"),
    ],
)
def test_a_step_that_fails_ends_the_story_and_says_so(broken: str, says: str) -> None:
    out = Told()

    async def play() -> Incident:
        async with Stubborn(seed=7, kit=False) as fleet:
            fleet.broken = broken
            limits = Limits(ready=2.0, planted=1)
            return await asyncio.wait_for(run(fleet, HASTE, out, seed=7, limits=limits), 120)

    incident = asyncio.run(play())
    assert incident.failure is not None
    assert incident.failure.startswith(f"{broken} failed: ")
    assert says in incident.failure
    assert [step.failed for step in incident.steps] == [*[False] * STEPS.index(broken), True]
    assert "not healed" in "\n".join(line.plain for line in story_of(incident))


QUIET = Traffic(sent=20, answered=15, failed=0, gave_up=(), failures=(), in_flight={}, out=())
HELD = Stuck("cmpl-demo-1-4-0-0123abcd", "FINISHED_ABORTED", 12.3, 10, 0.1, "e1")
INCIDENT = Incident(
    engine="decode-1",
    signature="HeldIdle",
    sentence="decode-1 holds 10 % of its KV cache with nothing running or waiting",
    steps=(Step("Observe", 1.0, 9.5, "seen"),),
    held_ratio=0.1,
    held_blocks=10,
    stuck=(HELD,),
    traffic=QUIET,
    lost=0,
    probes=Probes(14, 14),
    advice="vLLM 0.29.0 has the known defect",
)


@pytest.mark.parametrize(
    ("failed", "gave_up", "stuck", "count"),
    [
        pytest.param(0, ("demo-1-4",), (HELD,), 0, id="given up because it was stuck"),
        pytest.param(0, ("demo-1-40",), (HELD,), 1, id="given up for another reason"),
        pytest.param(2, ("demo-1-4",), (HELD,), 2, id="failed"),
        pytest.param(0, ("demo-1-4",), None, 1, id="an engine that cannot list its own"),
    ],
)
def test_lost_is_what_the_leak_did_not_swallow(
    failed: int, gave_up: tuple[str, ...], stuck: tuple[Stuck, ...] | None, count: int
) -> None:
    assert lost(replace(QUIET, failed=failed, gave_up=gave_up), stuck) == count


@pytest.mark.parametrize(
    ("incident", "says", "says_not"),
    [
        pytest.param(
            INCIDENT,
            [
                "Incident decode-1: HeldIdle, healed",
                "cmpl-demo-1-4-0-0123abcd",
                "200 14 times of 14",
                "nothing",
            ],
            ["not healed"],
            id="healed",
        ),
        pytest.param(
            replace(INCIDENT, failure="Verify failed: no answer"),
            ["not healed: Verify failed: no answer"],
            [],
            id="not healed",
        ),
        pytest.param(
            replace(INCIDENT, stuck=None),
            ["Held: 10 blocks, 10 % of the KV cache", "come with the engine kit"],
            ["cmpl-"],
            id="a real engine",
        ),
        pytest.param(
            replace(INCIDENT, probes=Probes(14, 13)),
            ["200 13 times of 14"],
            ["nothing."],
            id="a probe that saw",
        ),
        pytest.param(
            replace(INCIDENT, engine="", failure="no engine was found at fault"),
            ["No incident: no engine was found at fault"],
            ["Traffic"],
            id="nothing found",
        ),
    ],
)
def test_the_incident_is_told(incident: Incident, says: list[str], says_not: list[str]) -> None:
    text = "\n".join(line.plain for line in story_of(incident))
    assert [part for part in says if part not in text] == []
    assert [part for part in says_not if part in text] == []


def test_the_table_shows_what_was_not_read_as_unknown() -> None:
    rows = [
        Row("decode-0", "decode", State.FAULT, 0.5, 1, 0, "decode-0 leaks", out=True),
        Row("decode-1", "decode", State.BLIND, None, None, None, "cannot tell"),
    ]
    screen = Console(file=io.StringIO(), width=100)
    with screen.capture() as capture:
        screen.print(table(rows, QUIET))
    _, leaking, blind, caption = capture.get().rstrip().splitlines()
    assert "fault out" in leaking
    assert "██████░░░░░░  50 %" in leaking
    assert blind.count("?") == 3
    assert "20 sent, 15 answered" in caption


@pytest.mark.parametrize(
    ("width", "line", "shown"),
    [
        pytest.param(
            30,
            "  1.5 s  watchdog: healthy: decode-0 is idle",
            ["  1.5 s  watchdog: healthy:", "         decode-0 is idle"],
            id="below the text, not below the time",
        ),
        pytest.param(
            40,
            "   15.3 -  15.4 s  Drain          nothing",
            ["   15.3 -  15.4 s  Drain", "                   nothing"],
            id="below a column that leaves room",
        ),
        pytest.param(20, "no columns, but words", ["no columns, but", "words"], id="one column"),
        pytest.param(40, "  it  fits", ["  it  fits"], id="nothing to fold"),
    ],
)
def test_a_line_too_long_for_the_terminal_hangs_below_its_last_column(
    width: int, line: str, shown: list[str]
) -> None:
    assert folded(Text(line), Console(file=io.StringIO(), width=width)).plain.splitlines() == shown
    # A pipe has no width.
    assert folded(Text(line), Console(file=io.StringIO(), width=width, soft_wrap=True)).plain == line
