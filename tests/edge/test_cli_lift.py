"""`stanch lift`: whose annotations it takes off, how it ends a drain, what it says; that no operator acts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.edge import lifting
from stanch.edge.cluster import Cluster
from stanch.edge.lifting import Lifted, Pace, end_of_drain
from stanch_connector import contract
from tests.edge.cli import inside
from tests.edge.fake_kit import FakeKit
from tests.edge.fake_vllm import FakeVllm
from tests.edge.small_cluster import NAMESPACE, SmallCluster

pytestmark = pytest.mark.unit
T = TypeVar("T")

QUICK = Pace(seen_seconds=0.05, ready_seconds=0.3, look_seconds=0.02)
CORDON = json.dumps({"incident": "i", "beat": 3, "leaseSeconds": 30})


def command(verb: str, boot: str, name: str = "i/drain") -> str:
    return json.dumps({"id": name, "verb": verb, "bootId": boot, "args": {}, "deadlineSeconds": 60})


def play(directory: Path, scene: Callable[[SmallCluster, FakeVllm], Awaitable[T]]) -> T:
    """In a cluster with one pod, d0, whose engine has a kit."""

    async def whole() -> T:
        async with SmallCluster(directory) as small, FakeVllm() as engine:
            engine.kit = FakeKit()
            small.pod("d0", engine)
            return await scene(small, engine)

    return asyncio.run(whole())


def mark(small: SmallCluster, **marks: str) -> None:
    """Annotations of stanch.dev on d0, as the operator sets them."""
    raw = small.objects["pods", "d0"]
    raw["metadata"]["annotations"] |= {f"stanch.dev/{key}": value for key, value in marks.items()}
    small._obey(raw)


async def lift(small: SmallCluster, pace: Pace = QUICK) -> list[Lifted]:
    async with Cluster(small.config) as cluster:
        await lifting.hold(cluster, "lift")
        return await lifting.lifted(cluster, [NAMESPACE], "lift", pace)


def kit(engine: FakeVllm) -> FakeKit:
    assert engine.kit is not None
    return engine.kit


def test_a_drain_is_ended_before_its_command_goes(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i", cordon=CORDON, command=command("drain", kit(engine).boot_id))
        assert kit(engine).facts["draining"]
        assert await lift(small) == [Lifted(NAMESPACE, "d0", "i", ("uncordoned", "undrained"), True)]
        assert small.marks("d0") == {}
        assert not kit(engine).facts["draining"]
        assert [one["verb"] for one in kit(engine).facts["outcomes"]] == ["drain", "undrain"]
        # Again: there is nothing left to do.
        before = len([one for one in small.writes() if "pods" in one])
        assert await lift(small) == []
        assert len([one for one in small.writes() if "pods" in one]) == before

    play(tmp_path, scene)


def test_half_of_it_done_by_an_earlier_one(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i", command=command("undrain", kit(engine).boot_id, "another lift"))
        assert await lift(small) == [Lifted(NAMESPACE, "d0", "i", ("undrained",), True)]
        assert small.marks("d0") == {}

    play(tmp_path, scene)


def test_a_cordon_alone(tmp_path: Path) -> None:
    """What was released, or only cordoned, does not drain: no command is written."""

    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i", cordon=CORDON)
        assert await lift(small) == [Lifted(NAMESPACE, "d0", "i", ("uncordoned",), True)]
        assert kit(engine).facts["outcomes"] == []
        assert small.marks("d0") == {}

    play(tmp_path, scene)


def test_a_lock_alone(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i")
        assert await lift(small) == [Lifted(NAMESPACE, "d0", "i", (), True)]
        assert small.marks("d0") == {}

    play(tmp_path, scene)


def test_what_a_person_has_set_stays(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, cordon=CORDON)
        small.objects["pods", "d0"]["metadata"]["annotations"]["theirs"] = "x"
        assert await lift(small) == []
        assert set(small.marks("d0")) == {contract.ANNOTATION_CORDON, "theirs"}

    play(tmp_path, scene)


def test_an_engine_that_does_not_come_back(tmp_path: Path) -> None:
    """Nothing of ours is left on it all the same, and it is said."""

    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i", cordon=CORDON)
        real = small._ready
        small._ready = lambda raw, ready: real(raw, False)  # type: ignore[method-assign]
        (one,) = await lift(small)
        assert (one.ready, one.problem) == (False, "it is not ready after 0.3 s")
        assert small.marks("d0") == {}

    play(tmp_path, scene)


def test_a_pod_that_goes_meanwhile(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        mark(small, incident="i", cordon=CORDON)

        async def gone(request: Any) -> None:
            if request.path.endswith("/pods/d0"):
                small.objects.pop(("pods", "d0"), None)

        small.refuse = gone
        assert await lift(small) == [Lifted(NAMESPACE, "d0", "i", ("uncordoned",), None)]

    play(tmp_path, scene)


def lease(small: SmallCluster) -> Any:
    return small.objects["leases", "stanch"]["spec"]


def test_no_operator_acts_meanwhile(tmp_path: Path) -> None:
    """The one before is waited for: for so long it may believe in its Lease."""

    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        small.put("leases", "stanch", {"spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 0.3}})
        async with Cluster(small.config) as cluster:
            begun = time.monotonic()
            await lifting.hold(cluster, "lift")
            assert time.monotonic() - begun >= 0.2
            assert (lease(small)["holderIdentity"], lease(small)["leaseDurationSeconds"]) == ("lift", 60)
            # Of itself it need not be afraid.
            assert await cluster.hold("stanch", "lift", 60) == 0
            # A Lease that was given up.
            lease(small)["holderIdentity"] = ""
            assert await cluster.hold("stanch", "lift", 60) == 0

    play(tmp_path, scene)


def test_a_lease_that_is_renewed_in_between(tmp_path: Path) -> None:
    async def scene(small: SmallCluster, engine: FakeVllm) -> None:
        small.put("leases", "stanch", {"spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 15}})
        left = [2]

        async def renewed(request: Any) -> None:
            if request.method == "PUT" and left[0]:
                left[0] -= 1
                small._touched(small.objects["leases", "stanch"])

        small.refuse = renewed
        async with Cluster(small.config) as cluster:
            assert await cluster.hold("stanch", "lift", 60) == 10
        assert lease(small)["holderIdentity"] == "lift"

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", False),
        ("{", False),
        ("[]", False),
        (command("release", "b"), False),
        (command("drain", ""), False),
        (command("drain", "b"), True),
        (command("restart", "b"), True),
        (command("undrain", "b"), True),
    ],
)
def test_which_commands_may_have_left_a_drain(text: str, ends: bool) -> None:
    found = end_of_drain({"metadata": {"annotations": {contract.ANNOTATION_COMMAND: text}}}, "mine")
    assert (found is not None) is ends
    if found is not None:
        said = json.loads(found)
        assert (said["verb"], said["bootId"], said["id"]) == ("undrain", "b", "mine")


class TestCommand:
    def test_says_what_it_did(self, tmp_path: Path) -> None:
        async def scene(small: SmallCluster, engine: FakeVllm) -> None:
            mark(small, incident="i")
            asked = ("lift", "-n", NAMESPACE, "--kubeconfig", small.config)
            done = await inside(*asked)
            assert (done.code, done.out) == (0, "shop/d0: no longer marked (incident i), ready\n")
            done = await inside(*asked)
            assert (done.code, done.out) == (0, "no pod has a cordon of Stanch's\n")

        play(tmp_path, scene)

    def test_as_json(self, tmp_path: Path) -> None:
        async def scene(small: SmallCluster, engine: FakeVllm) -> None:
            mark(small, incident="i")
            small.watch()
            done = await inside("lift", "-A", "--output", "json", "--kubeconfig", small.config)
            assert json.loads(done.out) == {
                "schema": "stanch.lifted/1",
                "namespace": "shop",
                "pod": "d0",
                "incident": "i",
                "did": [],
                "ready": True,
                "problem": None,
            }

        play(tmp_path, scene)

    @pytest.mark.parametrize(("more", "code"), [((), 3), (("--best-effort",), 0)])
    def test_a_cluster_that_does_not_let_it(self, tmp_path: Path, more: tuple[str, ...], code: int) -> None:
        async def scene(small: SmallCluster, engine: FakeVllm) -> None:
            del small.objects["pods", "d0"]

            async def no(request: Any) -> tuple[int, dict[str, Any]]:
                return 403, {"kind": "Status", "reason": "Forbidden", "message": "not you", "code": 403}

            small.refuse = no
            done = await inside("lift", *more, "-A", "--kubeconfig", small.config)
            assert (done.code, done.out) == (code, "")
            assert done.err.startswith("cannot tell: ")
            assert "not you" in done.err

        play(tmp_path, scene)


def test_the_names_that_it_takes_off_are_all_that_the_operator_puts_on() -> None:
    assert set(lifting.OURS) == {
        contract.ANNOTATION_CORDON,
        contract.ANNOTATION_COMMAND,
        ANNOTATION_INCIDENT,
    }
