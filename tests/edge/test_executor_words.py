"""What an action writes on its pods; read back by the kit's own readers."""

from __future__ import annotations

import json

import pytest

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.core.plan_types import Action, Precondition, Verb
from stanch.edge.executor_words import annotations_of
from stanch_connector.apiserver import commands, cordon
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON

pytestmark = pytest.mark.unit

POD = Precondition("d0", "uid-d0", "c1", "boot-1", "7")
OTHER = Precondition("d1", "uid-d1", "c9", "boot-9", "8")


def action(verb: Verb, **differs: object) -> Action:
    values: dict[str, object] = {"deadline_seconds": 30.0, **differs}
    pods = values.pop("pods", (POD,))
    return Action(verb, "i-1", "shop/d0", "i-1/step-1", pods, **values)  # type: ignore[arg-type]


def test_a_cordon_as_the_kit_reads_it() -> None:
    marks = annotations_of(action(Verb.CORDON, beat=1796045600, lease_seconds=30.0), POD)
    assert marks.keys() == {ANNOTATION_CORDON, ANNOTATION_INCIDENT}
    assert cordon.parse(str(marks[ANNOTATION_CORDON])) == ("i-1", 1796045600, 30.0)
    assert marks[ANNOTATION_INCIDENT] == "i-1"


@pytest.mark.parametrize(
    ("verb", "word"),
    [(Verb.RELEASE, "release"), (Verb.DRAIN, "drain"), (Verb.RESTART, "restart")],
    ids=lambda one: getattr(one, "value", one),
)
def test_a_command_as_the_kit_takes_it(verb: Verb, word: str) -> None:
    marks = annotations_of(action(verb, ids=("cmpl-a",) if verb is Verb.RELEASE else ()), POD)
    book, order, outcome = commands.take(commands.Book("boot-1"), str(marks[ANNOTATION_COMMAND]), 100.0)
    assert order is not None
    assert (order.id, order.verb, order.deadline) == ("i-1/step-1", word, 130.0)
    assert outcome["state"] == "accepted"
    assert (order.release is not None and order.release.ids == ("cmpl-a",)) is (verb is Verb.RELEASE)
    # Written once more by another process, it is not done once more.
    assert commands.take(book, str(marks[ANNOTATION_COMMAND]), 101.0)[1] is None
    assert marks[ANNOTATION_INCIDENT] == "i-1"


def test_a_pod_whose_kit_never_said_its_boot_id_is_not_commanded() -> None:
    silent = Precondition("d0", "uid-d0", "c1", None, "7")
    assert annotations_of(action(Verb.DRAIN, pods=(silent,)), silent) == {}


def test_a_restart_goes_to_the_first_pod_of_a_group_only() -> None:
    restart = action(Verb.RESTART, pods=(POD, OTHER))
    assert annotations_of(restart, POD)
    assert annotations_of(restart, OTHER) == {}
    assert annotations_of(action(Verb.DRAIN, pods=(POD, OTHER)), OTHER)


def test_a_lift_takes_everything_off() -> None:
    marks = annotations_of(action(Verb.LIFT), POD)
    assert marks == {ANNOTATION_CORDON: None, ANNOTATION_COMMAND: None, ANNOTATION_INCIDENT: None}


def test_a_lift_of_a_draining_engine_ends_the_drain_first_and_keeps_the_lock() -> None:
    marks = annotations_of(action(Verb.LIFT), POD, draining=True)
    assert marks[ANNOTATION_CORDON] is None
    assert ANNOTATION_INCIDENT not in marks
    command = json.loads(str(marks[ANNOTATION_COMMAND]))
    assert (command["verb"], command["bootId"], command["id"]) == ("undrain", "boot-1", "i-1/step-1-undrain")


def test_a_release_of_very_many_fits_in_an_annotation() -> None:
    many = tuple(f"cmpl-{number:0100}" for number in range(20_000))
    marks = annotations_of(action(Verb.RELEASE, ids=many), POD)
    assert len(str(marks[ANNOTATION_COMMAND])) < 200_000  # all annotations of a pod: 256 KiB
