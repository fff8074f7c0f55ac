"""edge.cluster while the API server is in trouble: each fault of the proxy at the calls that meet it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from stanch.edge.cluster import (
    PODS,
    AlreadyExists,
    Change,
    Cluster,
    Conflict,
    Follower,
    NotFound,
    Unreachable,
)
from tests.bed.cluster import Namespace
from tests.bed.faults import (
    CutWatch,
    Drop,
    ExpireWatch,
    Fault,
    Hang,
    Refuse,
    Rule,
    SilentWatch,
    Slow,
)
from tests.bed.proxy import FaultProxy
from tests.cluster.installed import Installed, Speaker, idle_pod, incident, watch

pytestmark = pytest.mark.cluster

T = TypeVar("T")
_DEADLINE_SECONDS = 60.0


@pytest.fixture
def proxy(stanch: Installed) -> Iterator[FaultProxy]:
    with FaultProxy(stanch.address, trust=stanch.authority) as found:
        yield found


@pytest.fixture
def speaker(stanch: Installed, proxy: FaultProxy, tmp_path: Path) -> Speaker:
    return Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", url=proxy.url))


def statuses(proxy: FaultProxy, resource: str) -> list[int | None]:
    return [one.status for one in proxy.faults.seen if one.call.resource == resource]


class TestReads:
    @pytest.mark.parametrize(
        "fault",
        [Refuse(429, retry_after_seconds=1), Refuse(500), Refuse(503), Drop(), Slow(1.0)],
        ids=["429", "500", "503", "drop", "slow"],
    )
    def test_are_tried_again(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault
    ) -> None:
        namespace.apply(idle_pod("a"))
        proxy.faults.add(Rule(fault, verb="list", resource="pods"))
        start = time.monotonic()
        found = speaker.run(lambda cluster: cluster.pods(namespace.name))
        assert [pod["metadata"]["name"] for pod in found.items] == ["a"]
        if isinstance(fault, Refuse) and fault.retry_after_seconds:
            assert time.monotonic() - start >= fault.retry_after_seconds

    def test_not_for_ever_and_the_server_may_ask_for_more_time(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker
    ) -> None:
        proxy.faults.add(
            Rule(Refuse(503), verb="list", resource="pods", times=None),
            Rule(Refuse(429, retry_after_seconds=30), verb="list", resource="leakwatches"),
        )
        with pytest.raises(Unreachable, match="HTTP 503"):
            speaker.run(lambda cluster: cluster.pods(namespace.name))
        assert 2 <= len(statuses(proxy, "pods")) <= 5
        with pytest.raises(Unreachable) as caught:
            speaker.run(lambda cluster: cluster.watches(namespace.name))
        assert caught.value.retry_after == 30
        assert statuses(proxy, "leakwatches") == [429]

    def test_a_hang_ends(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.transport.REQUEST_SECONDS", 1.0)
        proxy.faults.add(Rule(Hang(), verb="list", resource="pods", times=None))
        with pytest.raises(Unreachable, match="no answer within"):
            speaker.run(lambda cluster: cluster.pods(namespace.name))

    def test_a_list_whose_second_page_expired_is_begun_anew(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.listing.PAGE", 2)
        namespace.apply(*(idle_pod(f"p{number}") for number in range(3)))
        proxy.faults.add(Rule(Refuse(410), verb="list", resource="pods", nth=2))
        found = speaker.run(lambda cluster: cluster.pods(namespace.name))
        assert [pod["metadata"]["name"] for pod in found.items] == ["p0", "p1", "p2"]
        assert statuses(proxy, "pods") == [200, 410, 200, 200]

    def test_not_found_and_forbidden_are_not_tried_again(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker
    ) -> None:
        with pytest.raises(NotFound):
            speaker.run(lambda cluster: cluster.pod(namespace.name, "none"))
        assert statuses(proxy, "pods") == [404]

    def test_a_stop_that_cannot_be_read_stops(
        self, proxy: FaultProxy, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.transport.REQUEST_SECONDS", 0.5)
        proxy.faults.add(Rule(Refuse(500), resource="configmaps", times=None))
        why = speaker.run(lambda cluster: cluster.stop_reason())
        assert why is not None
        assert "counts as stop" in why


class TestWrites:
    """Sent once. What came of it is an error; whether it happened shows at the next read."""

    FAULTS = pytest.mark.parametrize(
        "fault",
        [Refuse(500), Refuse(503), Refuse(429, retry_after_seconds=1), Drop(), Hang()],
        ids=["500", "503", "429", "drop", "hang"],
    )
    LIES = pytest.mark.parametrize(
        "fault",
        [Refuse(500, applied=True), Drop(applied=True), Hang(applied=True)],
        ids=["500", "drop", "hang"],
    )

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stanch.edge.cluster.transport.REQUEST_SECONDS", 3.0)

    @FAULTS
    def test_a_patch(self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault) -> None:
        self.patched(namespace, proxy, speaker, fault, applied=False)

    @LIES
    def test_a_patch_that_happened(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault
    ) -> None:
        self.patched(namespace, proxy, speaker, fault, applied=True)

    def patched(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault, applied: bool
    ) -> None:
        namespace.apply(idle_pod("a"))
        proxy.faults.add(Rule(fault, verb="patch", resource="pods"))

        async def scene(cluster: Cluster) -> None:
            meta = (await cluster.pod(namespace.name, "a"))["metadata"]
            as_read = {"uid": meta["uid"], "version": meta["resourceVersion"]}
            note = {"stanch.dev/incident": "i"}
            with pytest.raises(Unreachable):
                await cluster.patch_pod(namespace.name, "a", **as_read, annotations=note)
            found = (await cluster.pod(namespace.name, "a"))["metadata"].get("annotations", {})
            assert ("stanch.dev/incident" in found) == applied
            # As the next turn does it: whoever goes by the old version does no harm.
            if applied:
                with pytest.raises(Conflict):
                    await cluster.patch_pod(namespace.name, "a", **as_read, annotations=note)
            else:
                await cluster.patch_pod(namespace.name, "a", **as_read, annotations=note)

        speaker.run(scene)
        assert len([one for one in proxy.faults.seen if one.call.verb == "patch"]) == 2

    @FAULTS
    def test_a_create(self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault) -> None:
        proxy.faults.add(Rule(fault, verb="create", resource="leakincidents"))

        async def scene(cluster: Cluster) -> None:
            with pytest.raises(Unreachable):
                await cluster.create_incident(namespace.name, incident("i"))
            assert (await cluster.incidents(namespace.name)).items == []
            await cluster.create_incident(namespace.name, incident("i"))

        speaker.run(scene)

    @LIES
    def test_a_create_that_happened(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault
    ) -> None:
        proxy.faults.add(Rule(fault, verb="create", resource="leakincidents"))

        async def scene(cluster: Cluster) -> None:
            with pytest.raises(Unreachable):
                await cluster.create_incident(namespace.name, incident("i"))
            with pytest.raises(AlreadyExists):
                await cluster.create_incident(namespace.name, incident("i"))

        speaker.run(scene)

    def test_a_conflict_that_the_server_makes_up(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker
    ) -> None:
        namespace.apply(watch("w"))
        proxy.faults.add(Rule(Refuse(409), verb="update", resource="leakwatches/status"))

        async def scene(cluster: Cluster) -> None:
            version = (await cluster.watch(namespace.name, "w"))["metadata"]["resourceVersion"]
            with pytest.raises(Conflict):
                await cluster.write_watch_status(namespace.name, "w", {"suspectCount": 1}, version)
            await cluster.write_watch_status(namespace.name, "w", {"suspectCount": 1}, version)

        speaker.run(scene)

    @pytest.mark.parametrize("fault", [Refuse(429, retry_after_seconds=7), Refuse(500)], ids=["429", "500"])
    def test_an_eviction_that_is_no_matter_of_budgets(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Refuse
    ) -> None:
        """Only what a PodDisruptionBudget said is Refused: these say nothing of the pod."""
        namespace.apply(idle_pod("a"))
        pod = namespace.pod("a")
        assert pod is not None
        uid = pod["metadata"]["uid"]
        proxy.faults.add(Rule(fault, verb="create", resource="pods/eviction"))
        with pytest.raises(Unreachable) as caught:
            speaker.run(lambda cluster: cluster.evict(namespace.name, "a", uid=uid, dry_run=False))
        assert caught.value.retry_after == fault.retry_after_seconds
        assert namespace.pod("a") is not None


@dataclass
class Tale:
    """What a follower told."""

    follower: Follower
    changes: list[Change] = field(default_factory=list)

    def told(self) -> list[tuple[str, str]]:
        return [(one.type, one.object["metadata"]["name"]) for one in self.changes]


async def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(0.02)


class TestWatches:
    def play(
        self,
        speaker: Speaker,
        namespace: Namespace,
        scene: Callable[[Tale], Awaitable[T]],
        watch_seconds: int = 30,
    ) -> T:
        async def whole(cluster: Cluster) -> T:
            tale = Tale(cluster.follow(PODS, namespace.name, watch_seconds=watch_seconds))
            task = asyncio.create_task(tale.follower.run(tale.changes.append))
            try:
                return await scene(tale)
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        return speaker.run(whole)

    def test_what_is_there_and_what_changes(self, namespace: Namespace, speaker: Speaker) -> None:
        namespace.apply(idle_pod("a"))

        async def scene(tale: Tale) -> None:
            await until("the list", lambda: ("ADDED", "a") in tale.told())
            namespace.annotate("a", incident="i")
            namespace.apply(idle_pod("b"))
            await until("the new pod", lambda: ("ADDED", "b") in tale.told())
            namespace.kubectl("delete", "pod", "a", "--wait=false")
            await until("the deleted pod", lambda: ("DELETED", "a") in tale.told())
            assert ("MODIFIED", "a") in tale.told()
            assert set(tale.follower.items) == {(namespace.name, "b")}
            assert "managedFields" not in tale.follower.items[namespace.name, "b"]["metadata"]
            assert tale.follower.problem is None

        self.play(speaker, namespace, scene)

    def test_a_quiet_kind_stays_fresh_by_bookmarks(self, namespace: Namespace, speaker: Speaker) -> None:
        async def scene(tale: Tale) -> None:
            await until("the list", lambda: tale.follower.at is not None)
            listed = tale.follower.at
            assert listed is not None
            await until("a bookmark", lambda: (tale.follower.at or 0.0) > listed)
            assert tale.changes == []

        self.play(speaker, namespace, scene, watch_seconds=6)

    @pytest.mark.parametrize(
        "fault",
        [
            CutWatch(),
            CutWatch(in_order=False),
            ExpireWatch(),
            Refuse(410),
            Refuse(429, retry_after_seconds=1),
            Refuse(500),
            Refuse(503),
            Drop(),
            Slow(0.5),
        ],
        ids=["cut", "reset", "expired", "410", "429", "500", "503", "drop", "slow"],
    )
    def test_nothing_is_missed(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, fault: Fault
    ) -> None:
        proxy.faults.add(Rule(fault, verb="watch", resource="pods"))

        async def scene(tale: Tale) -> None:
            await until("the fault", lambda: bool(proxy.faults.hit()))
            namespace.apply(idle_pod("a"))
            namespace.kubectl("delete", "pod", "a", "--wait=false")
            namespace.apply(idle_pod("b"))
            await until("the pod that is there", lambda: ("ADDED", "b") in tale.told())
            await until("and no other", lambda: set(tale.follower.items) == {(namespace.name, "b")})
            await until("no problem", lambda: tale.follower.problem is None)

        self.play(speaker, namespace, scene)

    def test_a_watch_that_falls_silent_is_left(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.follow._GRACE_SECONDS", 1.0)
        proxy.faults.add(Rule(SilentWatch(), verb="watch", resource="pods"))

        async def scene(tale: Tale) -> None:
            await until("the silence", lambda: bool(proxy.faults.hit()))
            quiet = tale.follower.at
            namespace.apply(idle_pod("a"))
            assert tale.follower.at == quiet, "silence does not count as news"
            await until("the pod", lambda: ("ADDED", "a") in tale.told())
            await until("no problem", lambda: tale.follower.problem is None)

        self.play(speaker, namespace, scene, watch_seconds=2)

    def test_what_went_while_nobody_watched_is_told(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker
    ) -> None:
        """After a list made anew: what is new, what changed, what has gone, and nothing else."""
        namespace.apply(idle_pod("goes"), idle_pod("stays"), idle_pod("changes"))
        proxy.faults.add(Rule(ExpireWatch(after_events=1), verb="watch", resource="pods"))
        proxy.faults.add(Rule(Refuse(503), verb="list", resource="pods", nth=2))

        async def scene(tale: Tale) -> None:
            await until("the list", lambda: len(tale.changes) == 3)
            tale.changes.clear()
            # The event after which the watch expires.
            namespace.annotate("changes", incident="i")
            await until("the fault", lambda: any(one.call.verb == "list" for one in proxy.faults.hit()))
            namespace.kubectl("delete", "pod", "goes", "--wait=false")
            namespace.apply(idle_pod("comes"))
            await until("both", lambda: {("DELETED", "goes"), ("ADDED", "comes")} <= set(tale.told()))
            assert {name for _, name in tale.told()} <= {"goes", "comes", "changes"}

        self.play(speaker, namespace, scene)

    def test_an_api_server_that_is_away_is_waited_for(
        self, namespace: Namespace, proxy: FaultProxy, speaker: Speaker
    ) -> None:
        proxy.faults.add(Rule(Drop(), resource="pods", times=None))

        async def scene(tale: Tale) -> None:
            await until("the problem", lambda: tale.follower.problem is not None)
            assert "pods" in (tale.follower.problem or "")
            assert tale.follower.at is None
            proxy.faults.clear()
            namespace.apply(idle_pod("a"))
            await until("the pod", lambda: ("ADDED", "a") in tale.told())
            await until("no problem", lambda: tale.follower.problem is None)

        self.play(speaker, namespace, scene)
