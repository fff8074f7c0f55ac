"""Whatever the objects look like: a fleet or a refusal, never an exception, and no pod is lost or twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.core.fleet import Fleet, Way
from stanch.core.sample import Role
from stanch.edge.units import Heard, Object, Ref, Selection, fleet_of, queries, select, targets, wanted
from tests.edge.units_world import (
    LISTED,
    NOW,
    Raw,
    answering,
    arguments,
    by_workload,
    facts,
    headless,
    known,
    lws,
    lws_pod,
    pod,
    rollout,
    slice_of,
    thing,
    watch,
)

pytestmark = pytest.mark.unit

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["decode", "True", "running", "{}", '{"beat": 1}', "2026-11-30T13:33:20Z", "[", "0", "::1", "-1"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def world() -> tuple[list[Raw], list[Raw], list[Raw]]:
    """Pods of several kinds, what owns them, and their slices."""
    deployment, newest = rollout()
    set_ = lws("decode", owner=thing("DisaggregatedSet", "pd", "disaggregatedset.x-k8s.io/v1"))
    plain = pod("d0", owner=newest)
    parallel = arguments(
        pod("p-0", "prefill", owner=thing("StatefulSet", "p")),
        *("--data-parallel-size", "16", "--data-parallel-size-local", "8"),
        *("--kv-transfer-config", '{"kv_connector_extra_config": {"bidirectional_kv_xfer": true}}'),
    )
    parallel["metadata"]["annotations"] = {
        "stanch.dev/cordon": '{"incident": "i", "beat": 1}',
        "stanch.dev/command": '{"id": "i/drain-1"}',
        "stanch.dev/incident": "i",
    }
    pods = [plain, parallel, lws_pod(set_, 0, 0), headless(lws_pod(set_, 0, 1))]
    stateful = thing("StatefulSet", "p", spec={"replicas": 2}, status={"updateRevision": "x"})
    taint = {"key": "node.kubernetes.io/unschedulable", "timeAdded": "2026-11-30T13:00:00Z"}
    node = thing("Node", "node-a", "v1", spec={"unschedulable": True, "taints": [taint]})
    return pods, [deployment, newest, set_, stateful, node], [slice_of(plain, parallel)]


SOUND = json.dumps(world())


def places(value: object, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is within."""
    found = []
    inside = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else [])
    for key, inner in inside:
        found += [(*before, key), *places(inner, (*before, key))]
    return found


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[list[Any], list[Any], list[Any]]:
    """The world with some of its values replaced or removed."""
    parts: list[Any] = json.loads(SOUND)
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(places(parts)))
        target: Any = parts
        if len(path) == 1:
            continue
        for key in path[:-1]:
            target = target[key]
        if isinstance(target, dict) and draw(st.booleans()):
            del target[path[-1]]
        else:
            target[path[-1]] = draw(JSON)
    return parts[0], parts[1], parts[2]


WATCHES = {
    "labels": watch(),
    "deployment": by_workload("Deployment", "decode"),
    "lws": by_workload("LeaderWorkerSet", "decode", "leaderworkerset.x-k8s.io/v1"),
    "ports": watch(
        roles=[{"name": "decode", "selector": {"matchLabels": {"app": "engines"}}, "ports": [8000, 8001]}]
    ),
}


NAMES = list(known(*world()[1]))


def refs(objects: list[Any]) -> dict[Ref, Object | None]:
    """Under the names of the sound ones: the API server answers with what was asked for."""
    return dict(zip(NAMES, objects, strict=True))


def everything(
    of: str, pods: list[Any], objects: dict[Ref, Object | None], slices: list[Any] | None
) -> tuple[Selection, Fleet]:
    lw = WATCHES[of]
    have: dict[Ref, Object | None] = dict(objects)
    for _ in range(12):
        need = wanted(lw, pods, have)
        if not need:
            break
        assert not need & have.keys()
        have |= dict.fromkeys(need)
    else:
        pytest.fail("it never has enough")
    queries(lw, have)
    selection = select(lw, pods, have, list(WATCHES.values()))
    heard = {
        one.target.name: Heard(kit=facts(outcomes=({"id": 7}, {})), running=1.0)
        for one in targets(lw, selection)
    }
    return selection, fleet_of(lw, selection, have, slices, heard, listed_at=LISTED, now=NOW)


def sound(selection: Selection, fleet: Fleet) -> None:
    keys = [unit.key for unit in fleet.units]
    assert len(keys) == len(set(keys))
    in_units = [one.uid for unit in fleet.units for one in unit.pods]
    assert sorted(in_units) == sorted(one.uid for one in selection.chosen if one.ports)
    for unit in fleet.units:
        assert unit.pods
        assert unit.engines
        assert set(unit.peers) <= set(keys) - {unit.key}
        assert (unit.way is Way.IN_PLACE) == (unit.way_why == "")
        assert unit.role in Role
    assert all(one.why for one in selection.refused)
    assert all(number >= 0 for number in fleet.desired.values())


@given(st.sampled_from(sorted(WATCHES)), spoilt())
@settings(max_examples=1000, deadline=None)
def test_objects_with_something_wrong_in_them(of: str, parts: tuple[list[Any], list[Any], list[Any]]) -> None:
    pods, objects, slices = parts
    sound(*everything(of, pods, refs(objects), slices))


@given(st.sampled_from(sorted(WATCHES)), st.lists(JSON, max_size=4), st.lists(JSON, max_size=2))
@settings(max_examples=100, deadline=None)
def test_things_that_are_no_objects(of: str, pods: list[Any], slices: list[Any]) -> None:
    sound(*everything(of, pods, {}, slices))


@pytest.mark.parametrize(
    "instead", [None, "x", 7, ["x"], {"x": 1}], ids=["gone", "text", "number", "list", "map"]
)
def test_each_value_of_each_object_being_another(instead: Any) -> None:
    for path in places(json.loads(SOUND)):
        if len(path) > 1:
            parts = json.loads(SOUND)
            target: Any = parts
            for key in path[:-1]:
                target = target[key]
            if instead is None and isinstance(target, dict):
                del target[path[-1]]
            else:
                target[path[-1]] = instead
            sound(*everything("labels", parts[0], refs(parts[1]), parts[2]))


@given(
    st.lists(
        st.sampled_from(["--headless", "-dp", "--kv-transfer-config"]) | st.text(max_size=30), max_size=8
    )
)
@settings(max_examples=200, deadline=None)
def test_any_arguments(args: list[str]) -> None:
    sound(*everything("labels", [arguments(pod("d0"), *args)], {}, None))


def test_every_pod_of_the_sound_world_is_chosen() -> None:
    pods, objects, slices = world()
    selection, fleet = everything("labels", pods, refs(objects), slices)
    assert len(selection.chosen) == 4
    assert selection.refused == ()
    assert [unit.key for unit in fleet.units] == ["serving/d0", "serving/decode-0", "serving/p"]


def test_a_thousand_pods_are_a_thousand_units() -> None:
    deployment, newest = rollout(replicas=1000)
    pods = [pod(f"d{number:04}", owner=newest) for number in range(1000)]
    lw, have = watch(), known(deployment, newest)
    selection = select(lw, pods, have)
    heard = {one.name: answering() for one in selection.chosen}
    fleet = fleet_of(lw, selection, have, [slice_of(*pods)], heard, listed_at=LISTED, now=NOW)
    assert len(fleet.units) == 1000
    assert all(unit.lead.routed for unit in fleet.units)
    assert fleet.desired == {Role.DECODE: 1000}
