"""The whole demo: leaks planted in a fleet of processes, found, confirmed, healed; what a failure says."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from stanch.core.history import Ending, Evidence, Incident, Step, StepName, StepOutcome, Stuck
from stanch.core.verdict import Signature, State
from stanch.edge.demo.deployment import Traffic
from stanch.edge.demo.fleet import Fleet
from stanch.edge.demo.story import RESTART, SIMULATED, Stage, lost, main, policy, run
from stanch.edge.demo.telling import Account, Probes, Row, Told
from stanch.edge.demo.view import PlainView, folded, story_of, table

pytestmark = pytest.mark.unit
row = pytest.param

RELEASED = ["Observe", "Confirm", "Release", "Confirm"]
RESTARTED = ["Observe", "Confirm", "Cordon", "Drain", "Capture", "Confirm", "Restart", "Verify", "Uncordon"]
EVENTS = ["LeakConfirmed", "Released", "Resolved"]
EVENTS += ["LeakConfirmed", "Cordoned", "Drained", "Captured", "LeakConfirmed", "Restarting", "Restarted"]
EVENTS += ["Verified", "Uncordoned", "Resolved"]


class Heard(PlainView):
    """A plain view that remembers what it was shown."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        super().__init__(Console(file=self.file, soft_wrap=True, highlight=False, markup=False))
        self.boards: list[Sequence[Row]] = []

    def board(self, rows: Sequence[Row], traffic: Traffic | None) -> None:
        self.boards.append(rows)


def test_the_whole_story() -> None:
    out, pids = Heard(), list[dict[str, int | None]]()

    async def play() -> Account:
        async with Fleet(seed=7) as fleet:
            pids.append({member.name: member.pid for member in fleet.engines})
            account = await asyncio.wait_for(run(fleet, SIMULATED, out, seed=7), 180)
            pids.append({member.name: member.pid for member in fleet.engines})
            return account

    account = asyncio.run(play())
    text = out.file.getvalue()
    assert account.failure is None, text
    first, second = (told.incident for told in account.told)
    assert [(one.ending, one.code) for one in (first, second)] == [
        (Ending.RESOLVED, "Released"),
        (Ending.RESOLVED, "Restarted"),
    ]
    assert [step.name.value for step in first.steps] == RELEASED
    assert [step.name.value for step in second.steps] == RESTARTED
    for incident in (first, second):
        assert {step.outcome for step in incident.steps} == {StepOutcome.DONE}
        assert incident.evidence.signature is Signature.PARKED_REMOTE_KV
        assert all(stuck.id.startswith("cmpl-demo-7-") for stuck in incident.stuck)
        assert incident.stuck
    assert [name for name, pid in pids[0].items() if pids[1][name] != pid] == [second.unit]
    assert all("confirmed: the engine kit lists them" in told.cause for told in account.told)

    # What the leaks swallowed is named; the rest lost nothing, and a liveness probe is blind to all of it.
    assert account.lost == 0
    assert account.traffic.answered > 10
    for told in account.told:
        # A machine that is very busy may once let a probe wait for its second.
        assert told.probes.ok >= told.probes.sent - 1 >= 4

    # The watchdog never accused anybody else, and took out only whom it restarted.
    faults = {row.name for rows in out.boards for row in rows if row.state is State.FAULT}
    assert faults == {first.unit, second.unit}
    assert {row.name for rows in out.boards for row in rows if row.out} == {second.unit}

    # Told as the operator tells it, and each when it happened.
    said = re.findall(r"^ *[\d.]+ s  decode-\d  (\w+) {2,}\S", text, re.MULTILINE)
    assert [word for word in said if word != "log"] == EVENTS
    assert f"watchdog: fault: {first.unit} " in text
    assert "remediation.steps: [Restart]" in text
    assert all(re.match(r" *\d+\.\d s  \S", line) for line in text.splitlines())


def test_a_fleet_that_cannot_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert main(seed=1, plain=True) == 1
    said = capsys.readouterr().err
    assert said.startswith("stanch demo: stanch.edge.demo.engine did not start: ")
    assert len(said.splitlines()) == 1


class Deaf(Fleet):
    """Its engines see no annotation."""

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        super().annotate(name, {})


class Astray(Fleet):
    """The leak is another's than it was meant to be."""

    async def plant(self, name: str, requests: int, seconds: float) -> None:
        await super().plant("decode-1" if name != "decode-1" else "decode-2", requests, seconds)


HASTY = Stage("", SIMULATED.build, policy(2.5), (RESTART,), patience_seconds=15.0)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        row(Deaf, r"has not come to a restart.*: not within 15 s; decode-\d-\w+-1 is at Cordon", id="cordon"),
        row(Astray, r"the watchdog accuses decode-\d, but it is decode-\d that leaks", id="accused"),
    ],
)
def test_what_goes_wrong_ends_the_story_and_is_said(kind: type[Fleet], says: str) -> None:
    out = Heard()

    async def play() -> Account:
        async with kind(seed=7) as fleet:
            return await asyncio.wait_for(run(fleet, HASTY, out, seed=7), 120)

    account = asyncio.run(play())
    assert re.search(says, account.failure or ""), account.failure
    lines = [line.plain for line in story_of(account)]
    assert lines[-1] == f"Not healed: {account.failure}"
    assert any(": ParkedRemoteKV, open" in line for line in lines)


QUIET = Traffic(sent=20, answered=15, failed=0, gave_up=(), failures=(), in_flight={}, out=())
HELD = Stuck("cmpl-demo-1-4", 12.3, 10, client_gone=True, releasable=True, remote_engine="e1")
T = 1_800_000_000.0
INCIDENT = Incident(
    "decode-1-0badcafe-1",
    "decode-1",
    "uid",
    T + 9,
    evidence=Evidence(Signature.HELD_IDLE),
    stuck=(HELD,),
    steps=(
        Step(StepName.OBSERVE, T + 1, T + 9.5, StepOutcome.DONE, "HeldIdle"),
        Step(StepName.CONFIRM, T + 9.5, T + 10, StepOutcome.DONE, "the engine kit lists them"),
    ),
    ending=Ending.RESOLVED,
    code="Released",
)
WELL = Account(T, (Told(INCIDENT, "decode-1 holds 10 %", Probes(14, 14)),), QUIET, 0, "an upgrade")


@pytest.mark.parametrize(
    ("failed", "gave_up", "stuck", "count"),
    [
        row(0, ("demo-1-4",), (HELD,), 0, id="given up because it was stuck"),
        row(0, ("demo-1-40",), (HELD,), 1, id="given up for another reason"),
        row(2, ("demo-1-4",), (HELD,), 2, id="failed"),
        row(0, ("demo-1-4",), (), 1, id="nothing was stuck"),
    ],
)
def test_lost_is_what_the_leak_did_not_swallow(
    failed: int, gave_up: tuple[str, ...], stuck: tuple[Stuck, ...], count: int
) -> None:
    traffic = replace(QUIET, failed=failed, gave_up=gave_up)
    assert lost(traffic, [replace(INCIDENT, stuck=stuck)]) == count


def test_a_request_that_was_marked_is_not_lost_either() -> None:
    assert lost(replace(QUIET, gave_up=("park-1",), planted=("park-1",)), []) == 0


def told(account: Account) -> str:
    return "\n".join(line.plain for line in story_of(account))


def one(**changes: object) -> Account:
    incident = replace(INCIDENT, **changes)  # type: ignore[arg-type]
    return replace(WELL, told=(replace(WELL.told[0], incident=incident),))


def test_an_incident_is_told_with_its_steps_and_its_stuck_requests() -> None:
    assert told(WELL).splitlines() == [
        "",
        "LeakIncident decode-1-0badcafe-1: HeldIdle, Resolved (Released)",
        "  decode-1 holds 10 %",
        "    1.0 -   9.5 s  Observe   HeldIdle",
        "    9.5 -  10.0 s  Confirm   the engine kit lists them",
        "  Stuck requests, holding 10 blocks:",
        "    cmpl-demo-1-4  10 blocks, 12 s, its client has gone, from engine e1",
        "  A liveness probe of decode-1 meanwhile: 200 14 times of 14. It would have seen nothing.",
        "",
        "Traffic: 20 requests sent, 15 answered, 0 on their way; lost besides the stuck ones: 0.",
        "What would help: an upgrade.",
    ]


@pytest.mark.parametrize(
    ("account", "says", "says_not"),
    [
        row(one(ending=None, code=""), ["-1: HeldIdle, open"], ["Resolved"], id="open"),
        row(
            one(ending=Ending.ESCALATED, code="Recurrence", evidence=Evidence()),
            ["-1: Escalated (Recurrence)"],
            [],
            id="a person's",
        ),
        row(
            one(steps=(Step(StepName.DRAIN, T),), stuck=()), ["0.0 -          Drain"], ["Stuck"], id="drains"
        ),
        row(
            replace(WELL, told=(replace(WELL.told[0], probes=Probes(14, 13)),)),
            ["200 13 times of 14."],
            ["seen nothing"],
            id="a probe that saw",
        ),
        row(
            replace(WELL, told=(), failure="no engine was found at fault"),
            ["No incident.", "Not healed: no engine was found at fault"],
            ["probe"],
            id="nothing found",
        ),
        row(
            replace(WELL, traffic=replace(QUIET, failures=("demo-1-9: answered 500",)), lost=1),
            ["  demo-1-9: answered 500", "besides the stuck ones: 1."],
            [],
            id="lost",
        ),
    ],
)
def test_the_account_says(account: Account, says: list[str], says_not: list[str]) -> None:
    text = told(account)
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
        row(
            30,
            "  1.5 s  watchdog: healthy: decode-0 is idle",
            ["  1.5 s  watchdog: healthy:", "         decode-0 is idle"],
            id="below the text, not below the time",
        ),
        row(
            40,
            "   15.3 -  15.4 s  Drain          nothing",
            ["   15.3 -  15.4 s  Drain", "                   nothing"],
            id="below a column that leaves room",
        ),
        row(20, "no columns, but words", ["no columns, but", "words"], id="one column"),
        row(40, "  it  fits", ["  it  fits"], id="nothing to fold"),
    ],
)
def test_a_line_too_long_for_the_terminal_hangs_below_its_last_column(
    width: int, line: str, shown: list[str]
) -> None:
    assert folded(Text(line), Console(file=io.StringIO(), width=width)).plain.splitlines() == shown
    # A pipe has no width.
    assert folded(Text(line), Console(file=io.StringIO(), width=width, soft_wrap=True)).plain == line
