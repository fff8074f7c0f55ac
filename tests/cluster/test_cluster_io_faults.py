"""edge.cluster while the API server is in trouble: each fault of the proxy at the calls that meet it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stanch.edge.cluster import AlreadyExists, Cluster, Conflict, NotFound, Unreachable
from tests.bed.cluster import Namespace
from tests.bed.faults import Drop, Fault, Hang, Refuse, Rule, Slow
from tests.bed.proxy import FaultProxy
from tests.cluster.installed import Installed, Speaker, idle_pod, incident, watch

pytestmark = pytest.mark.cluster


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
        monkeypatch.setattr("stanch.edge.cluster.transport.REQUEST_SECONDS", 5.0)

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
