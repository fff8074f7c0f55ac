"""Processes as the planner's pods: what is written on them, and what is known of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.core.fleet import CordonMark, Pod
from stanch.edge.cluster import Conflict, Refused
from stanch.edge.demo.deployment import Member, Traffic
from stanch.edge.demo.pods import Pods
from stanch.edge.kit_answers import Facts
from stanch.edge.place import Pods as Place
from stanch.edge.units import Heard
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON

pytestmark = pytest.mark.unit

PREFILL = Member("prefill-0", "prefill", "http://127.0.0.1:1", 10)
DECODE = Member("decode-0", "decode", "http://127.0.0.1:2", 20)
WELL = Heard(("decode-0",), 0.0, False, True, Facts("boot-1", ready=True))
HEARD = {"prefill-0": Heard(healthy=True), "decode-0": WELL}
NOBODY_OUT = Traffic(0, 0, 0, (), (), {}, ())


class Shown:
    """A Deployment of which only what engines are shown matters."""

    kind = "none"
    engines = (PREFILL, DECODE)

    def __init__(self) -> None:
        self.annotations: dict[str, Mapping[str, str]] = {}

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        self.annotations[name] = annotations

    def log(self, name: str, lines: int) -> str:
        return f"{name}: {lines}"

    async def traffic(self) -> Traffic:
        return NOBODY_OUT

    async def plant(self, name: str, requests: int, seconds: float) -> None: ...

    async def health(self, name: str) -> bool:
        return True


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def pods(shown: Shown) -> Pods:
    return Pods(shown)


def decode(
    pods: Pods, now: Member = DECODE, heard: Heard = WELL, traffic: Traffic | None = NOBODY_OUT
) -> Pod:
    fleet = pods.fleet((PREFILL, DECODE), (PREFILL, now), {**HEARD, "decode-0": heard}, traffic, 100.0)
    return fleet.units[1].lead


def do(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_what_is_written_shows_on_the_pod_and_in_the_engine(pods: Pods, shown: Shown) -> None:
    place: Place = pods
    pod = decode(pods)
    assert (pod.lock, pod.cordon, pod.command) == (None, None, None)
    marks = {ANNOTATION_CORDON: '{"incident": "i-1", "beat": 7}', ANNOTATION_INCIDENT: "i-1"}
    do(place.patch_pod("demo", "decode-0", uid=pod.uid, version=pod.version, annotations=marks))
    assert shown.annotations == {"decode-0": marks}
    pod = decode(pods)
    assert (pod.lock, pod.cordon) == ("i-1", CordonMark("i-1", 7))
    more = {ANNOTATION_CORDON: None, ANNOTATION_COMMAND: '{"id": "c1"}'}
    do(place.patch_pod("demo", "decode-0", uid=pod.uid, version=pod.version, annotations=more))
    assert decode(pods).command == "c1"
    assert shown.annotations["decode-0"].keys() == {ANNOTATION_COMMAND, ANNOTATION_INCIDENT}


def test_a_pod_that_is_not_as_it_was_read_is_not_written_to(pods: Pods, shown: Shown) -> None:
    pod = decode(pods)
    for uid, version in ((pod.uid, "99"), ("another", pod.version)):
        with pytest.raises(Conflict, match="demo/decode-0 is not as it was read"):
            do(pods.patch_pod("demo", "decode-0", uid=uid, version=version, annotations={"a": "b"}))
    assert shown.annotations == {}
    with pytest.raises(Refused, match="is a process"):
        do(pods.evict("demo", "decode-0", uid=pod.uid, dry_run=False))


def test_what_is_known_of_a_process(pods: Pods) -> None:
    pod = decode(pods)
    assert (pod.container_id, pod.ready, pod.healthy, pod.routed) == ("pid 20", True, True, True)
    assert pod.kit is not None
    assert pod.kit.boot_id == "boot-1"
    assert not decode(pods, heard=replace(WELL, kit=Facts("boot-1", ready=False))).ready
    assert not decode(pods, heard=replace(WELL, kit=Facts("boot-1"))).ready, "not said is not ready"
    assert not decode(pods, heard=replace(WELL, healthy=None)).healthy
    assert decode(pods, traffic=replace(NOBODY_OUT, out=("decode-0",))).routed is False
    assert decode(pods, traffic=None).routed is None


def test_what_another_process_said_is_nobody_s_word(pods: Pods) -> None:
    pod = decode(pods, now=replace(DECODE, pid=21))
    assert (pod.container_id, pod.healthy, pod.kit, pod.running) == ("pid 21", False, None, None)
    pod = decode(pods, now=replace(DECODE, pid=None))
    assert (pod.container_id, pod.healthy) == (None, False)


def test_a_unit_is_one_process_and_its_peers_are_of_the_other_role(pods: Pods) -> None:
    fleet = pods.fleet((PREFILL, DECODE), (PREFILL, DECODE), HEARD, NOBODY_OUT, 100.0)
    assert [(unit.key, unit.peers, unit.engines) for unit in fleet.units] == [
        ("prefill-0", ("decode-0",), ("prefill-0",)),
        ("decode-0", ("prefill-0",), ("decode-0",)),
    ]
    assert fleet.listed_at == 100.0
