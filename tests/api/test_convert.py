"""What the core remembers survives the way through the API server's objects."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.api.convert import incident_of, ledger_of, limits_of, policy_of, status_of, status_with
from stanch.api.v1alpha1 import LeakIncident, LeakIncidentStatus, LeakWatch, LeakWatchStatus
from stanch.core.history import Incident, Ledger, StepName
from stanch.core.plan_limits import Approval, Limits, MaxUnavailable, Mode, Rung
from stanch.core.policy import Policy
from stanch.core.sample import Role
from tests.api.kinds_files import TOP, read
from tests.core.plan_world import Sim, World
from tests.core.test_planner_properties import ANSWERS, always, worlds

pytestmark = pytest.mark.unit


def through(incident: Incident) -> Incident:
    """Written to the server as JSON, and read again."""
    status = status_of(incident, LeakIncidentStatus()).model_dump(
        by_alias=True, mode="json", exclude_none=True
    )
    found: dict[str, Any] = {
        "metadata": {"name": incident.name, "resourceVersion": incident.version},
        "spec": {"podRef": {"name": incident.pod_name}, "trigger": {"type": incident.trigger.value}},
        "status": json.loads(json.dumps(status)),
    }
    if incident.approved:
        found["metadata"]["annotations"] = {"stanch.dev/approve": "true"}
    return incident_of(LeakIncident.model_validate(found))


def ledger_through(ledger: Ledger) -> Ledger:
    status = status_with(ledger, LeakWatchStatus()).model_dump(by_alias=True, mode="json", exclude_none=True)
    found: dict[str, Any] = {
        "metadata": {"name": "w", "resourceVersion": ledger.version},
        "spec": {"roles": [{"name": "decode", "selector": {"matchLabels": {"a": "b"}}}]},
        "status": json.loads(json.dumps(status)),
    }
    return ledger_of(LeakWatch.model_validate(found), ledger.read_at)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), world=worlds(Mode.ENFORCE))
def test_a_repair_goes_on_from_what_the_objects_remember(data: st.DataObject, world: World) -> None:
    """Two worlds, one of which writes and reads everything through the kinds, go the same way."""
    for verb, possible in ANSWERS.items():
        world.say[verb] = always(data.draw(st.sampled_from(possible), label=verb.value))
    other = World(
        deepcopy(world.units),
        world.limits,
        dict(world.say),
        incidents=dict(world.incidents),
        cordon_works=world.cordon_works,
    )
    for _ in range(40):
        world.run(1)
        other.run(1)
        other.incidents = {name: through(incident) for name, incident in other.incidents.items()}
        other.ledger = ledger_through(other.ledger)
        assert other.log == world.log
        assert {n: through(i) for n, i in world.incidents.items()} == other.incidents


def test_a_whole_repair_is_the_same_when_read_back() -> None:
    world = World({"d1": Sim("d1", leak=0.7, peers=("p1",)), "p1": Sim("p1", Role.PREFILL)}).run(30)
    assert through(world.only()) == world.only()
    assert ledger_through(world.ledger) == world.ledger


def test_texts_and_lists_are_cut_to_what_the_schema_allows() -> None:
    world = World({"d1": Sim("d1", leak=0.7)}).run(3)
    incident = world.only()
    many = tuple(replace(incident.stuck[0], id=str(n), age_seconds=float(n)) for n in range(150))
    status = status_of(replace(incident, wait="x" * 5000, stuck=many), LeakIncidentStatus())
    assert (len(status.wait), status.wait[-3:]) == (1024, "...")
    assert (len(status.stuck_requests), status.stuck_count, status.stuck_requests[0].id) == (100, 150, "149")


def test_the_phase_is_the_step_under_way_or_the_end() -> None:
    world = World({"d1": Sim("d1", leak=0.7)}).run(3)
    assert status_of(world.only(), LeakIncidentStatus()).phase == "Drain"
    world.run(30)
    assert status_of(world.only(), LeakIncidentStatus()).phase == "Resolved"


def test_an_incident_that_a_person_made_has_no_memory_yet() -> None:
    found = read(TOP / "docs" / "examples" / "leakincident.yaml")
    found["metadata"] |= {"creationTimestamp": "2026-11-29T22:00:00Z", "resourceVersion": "7"}
    incident = incident_of(LeakIncident.model_validate(found))
    assert (incident.pod_name, incident.pod_uid, incident.steps, incident.version) == (
        "shop-decode-0",
        "",
        (),
        "7",
    )
    assert incident.trigger.value == "Person"
    assert not incident.approved


def test_what_is_not_the_planners_stays_as_it_was() -> None:
    """That an alert was resolved is written by whoever hears of it, in the middle of a repair."""
    before = LeakIncidentStatus.model_validate({"watch": "shop", "alertResolved": "2026-11-30T05:00:00Z"})
    after = status_of(Incident("i", "d0", "u", 1.0).begin(StepName.CONFIRM, 2.0), before)
    assert (after.watch, after.alert_resolved, after.phase) == ("shop", before.alert_resolved, "Confirm")


@pytest.mark.parametrize(
    ("value", "approved"), [("true", True), (" True ", True), ("false", False), ("", False), ("yes", False)]
)
def test_approval_is_the_annotations_true(value: str, approved: bool) -> None:
    found = read(TOP / "docs" / "examples" / "leakincident.yaml")
    found["metadata"]["annotations"] = {"stanch.dev/approve": value}
    assert incident_of(LeakIncident.model_validate(found)).approved is approved


def watch(name: str) -> LeakWatch:
    return LeakWatch.model_validate(read(TOP / "docs" / "examples" / f"{name}.yaml"))


def test_a_watch_that_says_nothing_has_the_defaults_of_the_core() -> None:
    minimal = watch("leakwatch-minimal")
    assert limits_of(minimal) == Limits()
    assert policy_of(minimal) == Policy()


def test_what_a_watch_says_reaches_the_planner_and_the_detector() -> None:
    enforce = watch("leakwatch-enforce")
    assert limits_of(enforce) == Limits(
        mode=Mode.ENFORCE, drain_seconds=120, max_unavailable=MaxUnavailable(percent=25)
    )
    assert policy_of(enforce) == Policy(held_idle_seconds=90)
    careful = limits_of(watch("leakwatch-careful"))
    assert (careful.steps, careful.approval, careful.canary) == (
        frozenset({Rung.RELEASE}),
        Approval.MANUAL,
        False,
    )


def test_idle_canaries_are_sent_only_where_the_watch_asks_for_them() -> None:
    found = read(TOP / "docs" / "examples" / "leakwatch-minimal.yaml")
    found["spec"]["canary"] = {"idleEverySeconds": 3600}
    assert limits_of(LeakWatch.model_validate(found)).idle_every_seconds == 3600
    assert limits_of(watch("leakwatch-enforce")).idle_every_seconds is None


def test_a_key_of_a_newer_version_is_ignored_on_reading() -> None:
    found = read(TOP / "docs" / "examples" / "leakwatch-minimal.yaml")
    found["spec"]["fromTheFuture"] = {"a": 1}
    assert limits_of(LeakWatch.model_validate(found)) == Limits()
