"""The operator's metrics: what a scrape finds after incidents and turns."""

from __future__ import annotations

import asyncio
import io
import json
import time
from dataclasses import replace

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stanch.core.history import Ending, StepName
from stanch.core.plan_conditions import Said
from stanch.core.plan_types import Deferral, Reason
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.cluster import Call
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry, Turned, Watch
from tests.edge.incidents import T, done, made, stuck

pytestmark = pytest.mark.unit

SHOP = Watch("shop", "decodes", "uid-w")
OTHER = Watch("shop", "others", "uid-o")


READY = (Said("Ready", True, "Watching", "2 of 2 engines are read"),)


class Scene:
    """Telemetry with a clock that the test turns, and what it wrote and shows."""

    def __init__(self) -> None:
        self.time = T
        self.stream = io.StringIO()
        self.telemetry = Telemetry(Journal(self.stream), lambda: self.time, lambda: self.time - T)

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def series(self, family: str) -> dict[str, float]:
        """What follows the family's name, and labels but a watch's in the order of their names, to value."""
        page = generate_latest(self.telemetry.families.registry).decode()
        found = {}
        for one in text_string_to_metric_families(page):
            for sample in one.samples:
                if sample.name.startswith(family) and not sample.name.endswith(("_created", "_bucket")):
                    labels = {
                        key: value
                        for key, value in sample.labels.items()
                        if key not in ("namespace", "watch")
                    }
                    found[" ".join([sample.name.removeprefix(family), *labels.values()]).strip()] = (
                        sample.value
                    )
        return found


@pytest.fixture
def scene() -> Scene:
    return Scene()


def verdict(
    engine: str, state: State = State.HEALTHY, held: float = 0.0, limit: float | None = None
) -> Verdict:
    signature = Signature.HELD_IDLE if state in (State.FAULT, State.SUSPECT) else None
    return Verdict(T, engine, Role.DECODE, state, signature, held, limit)


def turned(**more: object) -> Turned:
    return Turned(due=10.0, began=10.5, ended=10.75, interval_seconds=5.0, **more)  # type: ignore[arg-type]


def test_a_turn(scene: Scene) -> None:
    verdicts = [
        verdict("a"),
        verdict("b", State.FAULT, 70, 60),
        verdict("c", State.BLIND),
        verdict("d", State.BLIND),
    ]
    deferred = [
        Deferral("shop/b", Reason.BUDGET, "1 of 1 unavailable"),
        Deferral("shop/c", Reason.BLIND, "cannot tell"),
        Deferral("shop/d", Reason.BLIND, "cannot tell"),
    ]
    incidents = [made(), done(made()).close(Ending.RESOLVED, "", T)]
    scene.telemetry.turn(
        SHOP, turned(verdicts=verdicts, deferred=deferred, incidents=incidents, tripped=True)
    )
    assert scene.series("stanch_engines") == {
        "healthy": 1,
        "suspect": 0,
        "fault": 1,
        "blind": 2,
    }
    assert scene.series("stanch_deferred_units") == {"BudgetStarved": 1, "Blind": 2}
    assert scene.series("stanch_incidents_open") == {"": 1}
    assert scene.series("stanch_breaker_open") == {"": 1}
    assert scene.series("stanch_turn_seconds") == {"_count": 1, "_sum": 0.25}
    assert scene.series("stanch_turn_lag_seconds") == {"_count": 1, "_sum": 0.5}

    scene.telemetry.turn(SHOP, turned(verdicts=verdicts[:1]))
    assert scene.series("stanch_deferred_units") == {}
    assert scene.series("stanch_engines")["blind"] == 0
    assert scene.series("stanch_breaker_open") == {"": 0}


def test_a_repair(scene: Scene) -> None:
    telemetry = scene.telemetry
    found = done(made(stuck=(stuck("a"), stuck("b"))), seconds=1)
    cordoning = found.begin(StepName.CORDON, T + 1)
    cordoned = done(cordoning, seconds=2)
    ended = cordoned.close(Ending.RESOLVED, "well again", T + 60)
    for before, after in ((None, found), (found, cordoning), (cordoning, cordoned), (cordoned, ended)):
        telemetry.incident(SHOP, before, after)
    assert scene.series("stanch_incidents_opened") == {"_total HeldIdle": 1}
    assert scene.series("stanch_incidents_ended") == {"_total Resolved": 1}
    assert scene.series("stanch_stuck_requests_found") == {"_total": 2}
    assert scene.series("stanch_step_seconds") == {
        "_count Done Confirm": 1,
        "_sum Done Confirm": 1,
        "_count Done Cordon": 1,
        "_sum Done Cordon": 2,
    }
    assert [line["event"] for line in scene.lines] == [
        "incident-opened",
        "step-ended",
        "stuck-request",
        "stuck-request",
        "step-begun",
        "step-ended",
        "incident-ended",
    ]


class TestDetectToCordon:
    """From when the hold had passed, as the verdict has it, to the end of the first cordon."""

    FAULT = verdict("decode-0", State.FAULT, held=62.0, limit=60.0)  # detected at T - 2

    def repair(self, scene: Scene, *, wait: str = "", fault: Verdict | None = FAULT) -> dict[str, float]:
        scene.telemetry.turn(SHOP, turned(verdicts=[] if fault is None else [fault]))
        found = replace(done(made()), wait=wait)
        cordoning = replace(found, wait="").begin(StepName.CORDON, T + 2)
        scene.telemetry.incident(SHOP, None, found)
        # It drains by now, so the fault no longer shows.
        scene.telemetry.turn(SHOP, turned(verdicts=[verdict("decode-0")]))
        scene.telemetry.incident(SHOP, found, cordoning)
        scene.telemetry.incident(SHOP, cordoning, done(cordoning, seconds=1))
        return scene.series("stanch_detect_to_cordon_seconds")

    def test_at_once(self, scene: Scene) -> None:
        assert self.repair(scene) == {"_count no": 1, "_sum no": 5}

    def test_after_a_wait(self, scene: Scene) -> None:
        assert self.repair(scene, wait="BudgetStarved: 1 of 1") == {"_count yes": 1, "_sum yes": 5}

    def test_what_was_not_seen_is_not_measured(self, scene: Scene) -> None:
        assert self.repair(scene, fault=None) == {}

    def test_an_incident_of_an_earlier_process_is_not_measured(self, scene: Scene) -> None:
        scene.telemetry.turn(SHOP, turned(verdicts=[self.FAULT]))
        cordoning = done(made()).begin(StepName.CORDON, T + 2)
        scene.telemetry.incident(SHOP, cordoning, done(cordoning))
        assert scene.series("stanch_detect_to_cordon_seconds") == {}

    def test_a_second_cordon_of_the_same_incident_is_not_measured(self, scene: Scene) -> None:
        self.repair(scene)
        again = done(made()).begin(StepName.CORDON, T + 90)
        scene.telemetry.incident(SHOP, again, done(again))
        assert scene.series("stanch_detect_to_cordon_seconds")["_count no"] == 1


def test_a_watch_that_is_gone_takes_its_series_along(scene: Scene) -> None:
    for watch in (SHOP, OTHER):
        scene.telemetry.turn(
            watch, turned(verdicts=[verdict("a")], deferred=[Deferral("u", Reason.BLIND, "")])
        )
        scene.telemetry.incident(watch, None, done(made()).close(Ending.RESOLVED, "", T))
        scene.telemetry.turn_failed(watch, 5.0, "Unreachable", "no answer")
    scene.telemetry.forget(SHOP)
    page = generate_latest(scene.telemetry.families.registry).decode()
    assert 'watch="decodes"' not in page
    assert "watch shop/decodes" not in page
    assert 'watch="others"' in page
    assert "watch shop/others" in page


def test_requests_and_failed_turns(scene: Scene) -> None:
    for code in (200, 200, 409, 0):
        scene.telemetry.call(Call("patch", "pods", code, 0.01))
    scene.telemetry.turn_failed(SHOP, 5.0, "Unreachable", "the API server did not answer")
    assert scene.series("stanch_api_requests") == {
        "_total 200 pods patch": 2,
        "_total 409 pods patch": 1,
        "_total none pods patch": 1,
    }
    assert scene.series("stanch_turns_failed") == {"_total Unreachable": 1}
    assert scene.lines[-1]["message"] == "the API server did not answer"


def test_active(scene: Scene) -> None:
    assert scene.series("stanch_active") == {"": 0}
    scene.telemetry.active(True)
    assert scene.series("stanch_active") == {"": 1}
    scene.telemetry.active(False)
    assert scene.series("stanch_active") == {"": 0}


def test_lost_lines_are_counted() -> None:
    stream = io.StringIO()
    stream.close()
    telemetry = Telemetry(Journal(stream), lambda: T, lambda: 0.0)
    telemetry.note("info", "started", "ready")
    telemetry.note("info", "started", "ready")
    page = generate_latest(telemetry.families.registry).decode()
    assert "stanch_log_lines_lost_total 2.0" in page


def test_a_condition_that_turns_is_an_event_and_a_line(scene: Scene) -> None:
    blind = (Said("Ready", False, "AllBlind", "no engine can be read: refused"),)
    assert scene.telemetry.turn(SHOP, turned(verdicts=[verdict("a")], said=READY)) == ()
    (text,) = scene.telemetry.turn(SHOP, turned(said=blind))
    assert (text.kind, text.name, text.uid, text.reason) == ("LeakWatch", "decodes", "uid-w", "AllBlind")
    assert scene.telemetry.turn(SHOP, turned(said=blind)) == ()
    line = scene.lines[-1]
    assert (line["event"], line["level"], line["watch"]) == ("watch-condition", "warning", "shop/decodes")


def test_that_nothing_was_read_yet_is_told_only_when_it_stays_so(scene: Scene) -> None:
    unread = (Said("Ready", False, "NotReadYet", "no engine has been read yet"),)
    # News of the watch itself bring a turn at once; the interval is 5 s, and an answer may take 15.
    for began in (10.5, 11.0, 15.5, 30.0):
        assert scene.telemetry.turn(SHOP, replace(turned(said=unread), began=began)) == ()
    assert scene.lines == []
    late = replace(turned(said=unread), began=31.0)
    (text,) = scene.telemetry.turn(SHOP, late)
    assert (text.warning, text.reason) == (True, "NotReadYet")
    assert scene.telemetry.turn(SHOP, late) == ()
    (text,) = scene.telemetry.turn(SHOP, turned(verdicts=[verdict("a")], said=READY))
    assert (text.warning, text.reason) == (False, "Ready")


def test_what_was_read_and_is_not_any_more_is_told_at_once(scene: Scene) -> None:
    assert scene.telemetry.turn(SHOP, turned(verdicts=[verdict("a")], said=READY)) == ()
    gone = (Said("Ready", False, "NoEngines", "no pod is selected: see spec.roles"),)
    (text,) = scene.telemetry.turn(SHOP, turned(said=gone))
    assert (text.warning, text.reason) == (True, "NoEngines")


def test_the_pulse_notices_a_loop_that_is_held_up() -> None:
    """Real time: the loop is blocked for longer than the pulse, and the histogram says by how much."""
    scene = Scene()
    telemetry = Telemetry(Journal(scene.stream))
    scene.telemetry = telemetry

    async def held_up() -> None:
        pulse = asyncio.create_task(telemetry.pulse())
        await asyncio.sleep(0)
        time.sleep(1.3)  # noqa: ASYNC251  what a careless handler does
        while scene.series("stanch_event_loop_lag_seconds")["_count"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        pulse.cancel()

    asyncio.run(asyncio.wait_for(held_up(), 30))
    found = scene.series("stanch_event_loop_lag_seconds")
    assert found["_count"] == 1
    assert found["_sum"] > 0.2
