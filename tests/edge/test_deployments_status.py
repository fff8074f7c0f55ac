"""Conditions of a DisaggDeployment, out of what there is."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.api.common import Condition, ConditionStatus, moment
from stanch.api.conditions import merged
from stanch.api.deployment import Part
from stanch.core.plan_conditions import Said
from stanch.edge.deployments_status import Role, Stopped, conditions, counts, role_of, was_ready
from stanch.edge.deployments_telling import turned

pytestmark = pytest.mark.unit

Object = dict[str, Any]
BOTH = [Part.PREFILL, Part.DECODE]
WATCHING = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Watching"}]}}
BLIND = {
    "status": {
        "conditions": [{"type": "Ready", "status": "False", "reason": "AllBlind", "message": "refused"}]
    }
}


def deployment(
    wanted: int | None = 2,
    ready: int = 2,
    updated: int | None = None,
    replicas: int | None = None,
    seen: int = 3,
    **conditions: tuple[str, str],
) -> Object:
    """conditions: type to status and reason; Available is True unless said."""
    spoken = {"Available": ("True", "MinimumReplicasAvailable"), **conditions}
    wants = 1 if wanted is None else wanted
    return {
        "metadata": {"generation": 3},
        "spec": {} if wanted is None else {"replicas": wanted},
        "status": {
            "observedGeneration": seen,
            "replicas": wants if replicas is None else replicas,
            "updatedReplicas": wants if updated is None else updated,
            "readyReplicas": ready,
            "conditions": [
                {"type": name, "status": status, "reason": reason, "message": f"because {reason}"}
                for name, (status, reason) in spoken.items()
            ],
        },
    }


def roles(decode: Object, prefill: Object | None = None) -> list[Role]:
    return [role_of(prefill or deployment(), Part.PREFILL), role_of(decode, Part.DECODE)]


def said(found: tuple[Said, ...]) -> list[str]:
    return [f"{one.type} {one.true} {one.reason}" for one in found]


class TestReady:
    def test_comes_first_and_needs_every_pod_and_the_watch(self) -> None:
        found = conditions(BOTH, roles(deployment()), WATCHING, None, False)
        assert said(found) == [
            "Ready True Serving",
            "Progressing False Complete",
            "Degraded False AsExpected",
        ]
        assert found[0].message == "prefill: 2 ready; decode: 2 ready"

    @pytest.mark.parametrize(
        ("decode", "progress"),
        [
            (deployment(ready=1), "PodsNotReady"),
            (deployment(updated=1), "RollingOut"),
            (deployment(replicas=3), "RollingOut"),
            (deployment(seen=2), "RollingOut"),
            ({"metadata": {"generation": 1}, "spec": {"replicas": 2}}, "RollingOut"),
            ({"metadata": {"generation": 1}, "spec": {"replicas": 0}}, "RollingOut"),
        ],
        ids=["not ready", "old pods", "one too many", "not seen", "nothing said", "nothing said of none"],
    )
    def test_is_not_reached_before(self, decode: Object, progress: str) -> None:
        found = conditions(BOTH, roles(decode), WATCHING, None, False)
        assert said(found)[:2] == ["Ready False RolesNotReady", f"Progressing True {progress}"]

    def test_is_not_reached_while_a_role_is_missing(self) -> None:
        found = conditions([*BOTH, Part.ROUTER], roles(deployment()), WATCHING, None, False)
        assert said(found)[:2] == ["Ready False RolesNotReady", "Progressing True RollingOut"]
        assert found[0].message == "not there yet: router"

    @pytest.mark.parametrize("watch", [None, {}, BLIND], ids=["none", "silent", "blind"])
    def test_needs_the_watch(self, watch: Object | None) -> None:
        found = conditions(BOTH, roles(deployment()), watch, None, False)
        assert said(found)[0] == "Ready False WatchNotReady"

    def test_says_why_the_watch_is_not(self) -> None:
        assert "AllBlind: refused" in conditions(BOTH, roles(deployment()), BLIND, None, False)[0].message

    def test_a_watch_that_an_operator_has_only_begun_to_read_takes_nothing_away(self) -> None:
        ready = {"type": "Ready", "status": "False", "reason": "NotReadYet"}
        begun = {"status": {"conditions": [ready]}}
        for before, expected in ((True, "Ready True Serving"), (False, "Ready False WatchNotReady")):
            assert said(conditions(BOTH, roles(deployment()), begun, None, before))[0] == expected
        assert (
            said(conditions(BOTH, roles(deployment()), BLIND, None, True))[0] == "Ready False WatchNotReady"
        )

    def test_a_watch_that_is_switched_off_is_as_it_should_be(self) -> None:
        off = {"spec": {"mode": "Disabled"}, **BLIND}
        assert said(conditions(BOTH, roles(deployment()), off, None, False))[0] == "Ready True Serving"

    def test_scaled_to_nothing_there_is_nothing_to_watch(self) -> None:
        none = [role_of(deployment(0, ready=0), name) for name in BOTH]
        assert said(conditions(BOTH, none, BLIND, None, False))[0] == "Ready True Serving"

    @pytest.mark.parametrize(
        ("decode", "kept"),
        [
            (deployment(ready=1), True),
            (deployment(ready=0), False),
            (deployment(ready=1, Available=("False", "MinimumReplicasUnavailable")), False),
            (deployment(wanted=0, ready=0), True),
            (deployment(wanted=1, ready=0), False),
        ],
        ids=["one in repair", "the last one gone", "too few", "none wanted", "the only one in repair"],
    )
    def test_once_reached_is_kept_while_each_role_serves(self, decode: Object, kept: bool) -> None:
        found = conditions(BOTH, roles(decode), WATCHING, None, True)
        assert found[0].true is kept

    def test_absent_replicas_are_one(self) -> None:
        assert role_of(deployment(None, ready=1), Part.DECODE).complete
        assert not role_of(deployment(None, ready=0), Part.DECODE).complete


class TestTrouble:
    @pytest.mark.parametrize(
        "decode",
        [
            deployment(ready=1, Progressing=("False", "ProgressDeadlineExceeded")),
            deployment(ready=1, ReplicaFailure=("True", "FailedCreate")),
        ],
        ids=["deadline", "quota"],
    )
    def test_a_rollout_that_does_not_get_on(self, decode: Object) -> None:
        found = conditions(BOTH, roles(decode), WATCHING, None, False)
        assert said(found) == ["Ready False RolesNotReady", "Progressing False Stuck", "Degraded True Stuck"]
        assert found[2].message.startswith("decode: because ")

    def test_what_is_wrong_for_good(self) -> None:
        stopped = Stopped("Invalid", "spec.roles[decode].engine.args[0]: no")
        found = conditions(BOTH, roles(deployment()), WATCHING, stopped, True)
        assert said(found) == ["Ready False Invalid", "Progressing False Invalid", "Degraded True Invalid"]
        assert found[0].message == "spec.roles[decode].engine.args[0]: no. What runs is left as it is."

    def test_before_anything_runs_nothing_is_said_of_what_runs(self) -> None:
        found = conditions(BOTH, [], None, Stopped("NoKitImage", "no image"), False)
        assert found[0].message == "no image"

    def test_what_passes_by_itself(self) -> None:
        found = conditions(BOTH, [], None, Stopped("NotApplied", "503", passing=True), False)
        assert said(found) == [
            "Ready False NotApplied",
            "Progressing True NotApplied",
            "Degraded False AsExpected",
        ]


def test_counts() -> None:
    found = counts(roles(deployment(ready=1, updated=0, replicas=3)))
    assert [one.model_dump(mode="json") for one in found] == [
        {"name": "prefill", "replicas": 2, "ready": 2, "updated": 2},
        {"name": "decode", "replicas": 3, "ready": 1, "updated": 0},
    ]


@pytest.mark.parametrize(("generation", "expected"), [(7, True), (8, False)])
def test_ready_counts_for_its_generation_only(generation: int, expected: bool) -> None:
    before = merged([], [Said("Ready", True, "Serving")], 7, 1000.0)
    assert was_ready(before, generation) is expected
    assert not was_ready([], generation)


class TestEvents:
    STOPPED = Stopped("Invalid", "no")

    def told(self, before: list[Condition], *args: Any) -> list[tuple[bool, str]]:
        found = turned(before, conditions(BOTH, *args), "shop", "1")
        assert all(one.kind == "DisaggDeployment" and one.uid == "1" for one in found)
        return [(one.warning, one.reason) for one in found]

    def known(self, *args: Any) -> list[Condition]:
        return merged([], conditions(BOTH, *args), 1, 1000.0)

    def test_a_new_one_that_is_not_ready_yet_is_no_news(self) -> None:
        assert self.told([], [], None, None, False) == []
        assert self.told([], [], None, self.STOPPED, False) == [(True, "Invalid")]

    def test_of_what_turns(self) -> None:
        well = (roles(deployment()), WATCHING, None, False)
        gone = (roles(deployment(ready=0)), WATCHING, None, True)
        wrong = (roles(deployment()), WATCHING, self.STOPPED, True)
        other = (roles(deployment()), WATCHING, Stopped("Refused", "no"), True)
        assert self.told(self.known([], None, None, False), *well) == [(False, "Serving")]
        assert self.told(self.known(*well), *well) == []
        assert self.told(self.known(*well), *gone) == [(True, "RolesNotReady")]
        assert self.told(self.known(*well), *wrong) == [(True, "Invalid")]
        assert self.told(self.known(*wrong), *wrong) == []
        assert self.told(self.known(*wrong), *other) == [(True, "Refused")]
        assert self.told(self.known(*wrong), *well) == [(False, "DegradedOver"), (False, "Serving")]

    def test_a_condition_of_somebody_else_is_left_alone(self) -> None:
        theirs = Condition(
            type="Theirs", status=ConditionStatus.TRUE, last_transition_time=moment(1.0), reason="X"
        )
        assert self.told([theirs], roles(deployment()), WATCHING, None, False) == [(False, "Serving")]
