"""edge.cluster against a real API server, under the operator's own account."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.cluster import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ObjectRef,
    Refused,
    Unreachable,
)
from tests.bed import manifests
from tests.bed.cluster import Namespace
from tests.cluster.installed import NAMESPACE, Installed, Speaker, idle_pod, incident, watch

pytestmark = pytest.mark.cluster

Object = dict[str, Any]


@pytest.fixture
def speaker(stanch: Installed, tmp_path: Path) -> Speaker:
    return Speaker(stanch.kubeconfig(tmp_path / "kubeconfig"))


class TestLists:
    def test_pods_of_a_selector_at_a_time_that_was_before(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        namespace.apply(idle_pod("a", {"role": "decode"}), idle_pod("b", {"role": "prefill"}))
        before = time.time()
        found = speaker.run(lambda cluster: cluster.pods(namespace.name, "role in (decode)"))
        assert [pod["metadata"]["name"] for pod in found.items] == ["a"]
        assert "managedFields" not in found.items[0]["metadata"]
        assert before <= found.at <= time.time()
        assert int(found.version) >= int(found.items[0]["metadata"]["resourceVersion"])

    def test_a_list_longer_than_a_page_is_whole(
        self, namespace: Namespace, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.listing.PAGE", 2)
        names = [f"p{number}" for number in range(5)]
        namespace.apply(*map(idle_pod, names))
        found = speaker.run(lambda cluster: cluster.pods(namespace.name))
        assert [pod["metadata"]["name"] for pod in found.items] == names

    def test_an_empty_list_is_a_list(self, namespace: Namespace, speaker: Speaker) -> None:
        async def scene(cluster: Cluster) -> list[int]:
            listings = [
                await cluster.pods(namespace.name),
                await cluster.endpoint_slices(namespace.name),
                await cluster.pdbs(namespace.name),
                await cluster.watches(namespace.name),
                await cluster.incidents(namespace.name),
            ]
            return [len(listing.items) for listing in listings]

        assert speaker.run(scene) == [0, 0, 0, 0, 0]

    def test_what_may_not_be_listed(self, stanch: Installed, namespace: Namespace, tmp_path: Path) -> None:
        token = stanch.token("default", namespace.name)
        stranger = Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", token=token))
        with pytest.raises(Forbidden, match=r"list pods in .*cannot list resource .*HTTP 403"):
            stranger.run(lambda cluster: cluster.pods(namespace.name))

    def test_a_token_that_nobody_knows(self, stanch: Installed, tmp_path: Path) -> None:
        stranger = Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", token="nobody"))
        with pytest.raises(Forbidden, match="HTTP 401"):
            stranger.run(lambda cluster: cluster.pods(None))


def test_a_token_that_was_replaced_in_the_file_is_taken(
    stanch: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    stale = Speaker(stanch.kubeconfig(path, token="stale"))

    async def scene(cluster: Cluster) -> int:
        with pytest.raises(Forbidden):
            await cluster.pods(namespace.name)
        stanch.kubeconfig(path)
        return len((await cluster.pods(namespace.name)).items)

    assert stale.run(scene) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file"),
        ("[1, 2", "kubeconfig .*: ParserError"),
        ("{}", "kubeconfig .*: "),
        ('{"contexts": [], "current-context": "x", "clusters": [], "users": []}', "x"),
    ],
    ids=["no file", "no YAML", "empty", "context of nothing"],
)
def test_a_kubeconfig_that_is_none(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClusterError, match=words):
        Speaker(str(path)).run(lambda cluster: cluster.version())


def test_outside_a_pod_a_kubeconfig_is_needed() -> None:
    async def scene() -> None:
        async with Cluster(None):
            pass

    with pytest.raises(ClusterError, match="Name a kubeconfig"):
        asyncio.run(scene())


def test_a_server_that_is_not_there(stanch: Installed, tmp_path: Path) -> None:
    nowhere = Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", url="http://127.0.0.1:9"))
    with pytest.raises(Unreachable, match=r"create leakincidents in a: .*127\.0\.0\.1:9"):
        nowhere.run(lambda cluster: cluster.create_incident("a", incident("b")))


def ours(meta: Object) -> dict[str, str]:
    annotations = meta.get("annotations", {})
    return {key: value for key, value in annotations.items() if key.startswith("stanch.dev/")}


class TestPatch:
    def test_sets_and_removes_annotations_of_the_pod_as_it_was_read(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        namespace.apply(idle_pod("a"))

        async def scene(cluster: Cluster) -> None:
            pod = (await cluster.pods(namespace.name)).items[0]["metadata"]
            first = await cluster.patch_pod(
                namespace.name,
                "a",
                uid=pod["uid"],
                version=pod["resourceVersion"],
                annotations={"stanch.dev/incident": "i", "stanch.dev/cordon": "{}"},
            )
            # The version that a patch gives is good for the next one.
            second = await cluster.patch_pod(
                namespace.name,
                "a",
                uid=pod["uid"],
                version=first,
                annotations={"stanch.dev/cordon": None, "stanch.dev/never-was": None},
            )
            found = (await cluster.pod(namespace.name, "a"))["metadata"]
            assert ours(found) == {"stanch.dev/incident": "i"}
            assert found["resourceVersion"] == second

        speaker.run(scene)

    def test_another_version_or_another_pod_is_a_conflict_and_nothing_is_written(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        namespace.apply(idle_pod("a"))

        async def scene(cluster: Cluster) -> None:
            meta = (await cluster.pod(namespace.name, "a"))["metadata"]
            good = {"uid": meta["uid"], "version": meta["resourceVersion"]}
            other = "00000000-0000-0000-0000-000000000000"
            for changed in ({"version": "1"}, {"uid": other}):
                with pytest.raises(Conflict):
                    await cluster.patch_pod(
                        namespace.name, "a", **(good | changed), annotations={"stanch.dev/incident": "i"}
                    )
            assert ours((await cluster.pod(namespace.name, "a"))["metadata"]) == {}
            with pytest.raises(NotFound):
                await cluster.patch_pod(namespace.name, "none", **good, annotations={})
            with pytest.raises(ValueError, match="any pod would be patched"):
                await cluster.patch_pod(namespace.name, "a", uid="", version="", annotations={})

        speaker.run(scene)


class TestKinds:
    def test_status_is_replaced_under_the_version_that_was_read(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        namespace.apply(watch("w"))

        async def scene(cluster: Cluster) -> None:
            found = (await cluster.watches(namespace.name)).items[0]
            version = found["metadata"]["resourceVersion"]
            full = {"suspectCount": 2, "breaker": {"why": "it failed"}}
            first = await cluster.write_watch_status(namespace.name, "w", full, version)
            with pytest.raises(Conflict):
                await cluster.write_watch_status(namespace.name, "w", {"suspectCount": 9}, version)
            await cluster.write_watch_status(namespace.name, "w", {"suspectCount": 3}, first)
            after = await cluster.watch(namespace.name, "w")
            assert after["status"]["suspectCount"] == 3
            assert "why" not in after["status"].get("breaker", {}), "what was left out is gone"
            assert after["spec"] == found["spec"]
            with pytest.raises(Invalid):
                await cluster.write_watch_status(
                    namespace.name, "w", {"suspectCount": "many"}, after["metadata"]["resourceVersion"]
                )
            with pytest.raises(Invalid, match="resourceVersion"):
                await cluster.write_watch_status(namespace.name, "w", {"suspectCount": 4}, "")
            with pytest.raises(NotFound):
                await cluster.write_watch_status(namespace.name, "none", {}, first)

        speaker.run(scene)

    def test_an_incident_is_created_once_written_and_deleted(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        async def scene(cluster: Cluster) -> None:
            made = await cluster.create_incident(namespace.name, incident("i"))
            with pytest.raises(AlreadyExists):
                await cluster.create_incident(namespace.name, incident("i"))
            with pytest.raises(Invalid, match="podRef"):
                await cluster.create_incident(namespace.name, incident("j") | {"spec": {}})
            version = made["metadata"]["resourceVersion"]
            status = {"phase": "Observe", "episode": 1}
            await cluster.write_incident_status(namespace.name, "i", status, version)
            found = (await cluster.incidents(namespace.name)).items[0]
            assert found["status"]["phase"] == "Observe"
            with pytest.raises(Conflict):
                await cluster.delete_incident(namespace.name, "i", uid="another")
            assert (await cluster.incident(namespace.name, "i"))["metadata"]["name"] == "i"
            await cluster.delete_incident(namespace.name, "i", uid=made["metadata"]["uid"])
            with pytest.raises(NotFound):
                await cluster.incident(namespace.name, "i")
            with pytest.raises(NotFound):
                await cluster.create_incident("no-such-namespace", incident("i"))

        speaker.run(scene)


def budget(name: str, labels: dict[str, str]) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }


class TestEvict:
    def uid(self, namespace: Namespace, name: str) -> str:
        pod = namespace.pod(name)
        assert pod is not None
        return str(pod["metadata"]["uid"])

    def test_the_pod_of_this_uid_and_no_other(self, namespace: Namespace, speaker: Speaker) -> None:
        namespace.apply(idle_pod("a"))
        uid = self.uid(namespace, "a")

        async def scene(cluster: Cluster) -> None:
            await cluster.evict(namespace.name, "a", uid=uid, dry_run=True)
            assert (await cluster.pod(namespace.name, "a"))["metadata"].get("deletionTimestamp") is None
            with pytest.raises(NotFound, match="another one"):
                await cluster.evict(namespace.name, "a", uid="another", dry_run=False)
            await cluster.evict(namespace.name, "a", uid=uid, dry_run=False)
            with pytest.raises(NotFound):
                await cluster.evict(namespace.name, "a", uid=uid, dry_run=False)

        speaker.run(scene)

    def test_a_budget_refuses_and_is_named(self, namespace: Namespace, speaker: Speaker) -> None:
        labels = {"app": manifests.APP, "role": "decode"}
        namespace.apply(manifests.engine("a", "decode", kit=False), budget("keep-decodes", labels))
        namespace.wait_ready("a")
        uid = self.uid(namespace, "a")

        async def scene(cluster: Cluster) -> None:
            for dry_run in (True, False):
                with pytest.raises(Refused, match="keep-decodes"):
                    await cluster.evict(namespace.name, "a", uid=uid, dry_run=dry_run)

        speaker.run(scene)
        assert self.uid(namespace, "a") == uid

    def test_of_several_budgets_those_of_the_pod_are_named(
        self, namespace: Namespace, speaker: Speaker
    ) -> None:
        labels = {"app": manifests.APP}
        namespace.apply(
            manifests.engine("a", "decode", kit=False),
            budget("first", labels),
            budget("second", {"role": "decode"}),
            budget("of-others", {"role": "prefill"}),
        )
        namespace.wait_ready("a")
        uid = self.uid(namespace, "a")
        with pytest.raises(Refused, match=r": first, second$"):
            speaker.run(lambda cluster: cluster.evict(namespace.name, "a", uid=uid, dry_run=True))


def test_logs_and_what_has_none(namespace: Namespace, speaker: Speaker) -> None:
    namespace.apply(manifests.engine("a", "decode", kit=False), idle_pod("waits"))
    namespace.wait_ready("a")

    async def scene(cluster: Cluster) -> str:
        assert await cluster.logs(namespace.name, "waits", "a", 5) == ""
        for pod, container in (("none", "vllm"), ("a", "none")):
            with pytest.raises(NotFound):
                await cluster.logs(namespace.name, pod, container, 5)
        with pytest.raises(NotFound, match="previous"):
            await cluster.logs(namespace.name, "a", "vllm", 5, previous=True)
        return await cluster.logs(namespace.name, "a", "vllm", 3)

    assert len(speaker.run(scene).splitlines()) <= 3


class TestGet:
    def test_owners_are_read_once_a_minute_and_what_is_not_there_as_well(
        self, stanch: Installed, namespace: Namespace, tmp_path: Path
    ) -> None:
        namespace.apply(manifests.deployment("d", "decode", 1))
        calls: list[str] = []
        there = ObjectRef("apps/v1", "Deployment", "d", namespace.name)
        gone = ObjectRef("apps/v1", "StatefulSet", "s", namespace.name)
        kindless = ObjectRef("serving.example/v1", "Group", "g", namespace.name)

        async def scene() -> None:
            path = stanch.kubeconfig(tmp_path / "kubeconfig")
            async with Cluster(path, on_call=lambda call: calls.append(call.resource)) as cluster:
                found = await asyncio.gather(*(cluster.get(there) for _ in range(20)))
                assert {one["spec"]["replicas"] for one in found} == {1}
                for ref in (gone, kindless, gone, kindless):
                    with pytest.raises(NotFound):
                        await cluster.get(ref)
                assert sorted(calls) == ["", "deployments", "statefulsets"]
                await cluster.get(there, max_age=0)
                assert calls[-1] == "deployments"

        asyncio.run(scene())

    def test_a_node_and_a_kind_that_is_looked_up(self, namespace: Namespace, speaker: Speaker) -> None:
        namespace.apply(watch("w"))

        async def scene(cluster: Cluster) -> None:
            found = await cluster.get(ObjectRef("stanch.dev/v1alpha1", "LeakWatch", "w", namespace.name))
            assert found["metadata"]["name"] == "w"
            with pytest.raises(NotFound):
                await cluster.get(ObjectRef("v1", "Node", "none"))
            with pytest.raises(Forbidden):
                await cluster.get(ObjectRef("batch/v1", "Job", "j", namespace.name))

        speaker.run(scene)


class TestStop:
    @pytest.mark.parametrize(
        ("data", "stops"),
        [
            (None, False),
            ({}, False),
            ({"stop": "false"}, False),
            ({"stop": "True\n"}, True),
            ({"stop": "yes"}, True),
        ],
        ids=["absent", "empty", "false", "true", "neither"],
    )
    def test_config_map(
        self, stanch: Installed, speaker: Speaker, data: dict[str, str] | None, stops: bool
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "stanch-stop", "namespace": NAMESPACE},
            "data": data,
        }
        if data is not None:
            stanch.cluster.apply(body)
        try:
            why = speaker.run(lambda cluster: cluster.stop_reason())
        finally:
            stanch.cluster.kubectl(
                "delete", "configmap", "stanch-stop", f"--namespace={NAMESPACE}", "--ignore-not-found"
            )
        assert (why is not None) == stops
        assert why is None or "stanch-system/stanch-stop" in why

    def test_what_may_not_be_read_stops(
        self, stanch: Installed, namespace: Namespace, tmp_path: Path
    ) -> None:
        stranger = Speaker(
            stanch.kubeconfig(tmp_path / "kubeconfig", token=stanch.token("default", namespace.name))
        )
        why = stranger.run(lambda cluster: cluster.stop_reason())
        assert why is not None
        assert "counts as stop" in why


def test_what_the_account_may(namespace: Namespace, speaker: Speaker) -> None:
    async def scene(cluster: Cluster) -> list[bool]:
        return [
            await cluster.allowed("create", "", "pods/eviction", namespace.name),
            await cluster.allowed("patch", "", "pods"),
            await cluster.allowed("create", "", "pods/exec", namespace.name),
            await cluster.allowed("get", "", "configmaps", NAMESPACE, "stanch-stop"),
            await cluster.allowed("get", "", "configmaps", NAMESPACE, "other"),
        ]

    assert speaker.run(scene) == [True, True, False, True, False]
    assert speaker.run(lambda cluster: cluster.version()).startswith("v1.")


class TestEvents:
    def told(self, namespace: Namespace, kind: str) -> list[Object]:
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events"
        items = namespace.cluster.api(path)["items"]
        return [one for one in items if one["reportingController"] == "stanch.dev/operator"]

    def test_the_same_again_is_counted_in_one_event(
        self, stanch: Installed, namespace: Namespace, tmp_path: Path
    ) -> None:
        namespace.apply(watch("w"))
        now = [time.time()]

        async def scene() -> None:
            path = stanch.kubeconfig(tmp_path / "kubeconfig")
            async with Cluster(path, instance="me", clock=lambda: now[0]) as cluster:
                found = await cluster.watch(namespace.name, "w")
                about = {
                    "apiVersion": found["apiVersion"],
                    "kind": found["kind"],
                    "name": "w",
                    "namespace": namespace.name,
                    "uid": found["metadata"]["uid"],
                }
                for _ in range(3):
                    await cluster.event(about, "BudgetStarved", "Wait", "one is down", warning=True)
                assert "series" not in self.told(namespace, "w")[0]
                now[0] += 61
                await cluster.event(about, "BudgetStarved", "Wait", "one is down", warning=True)
                await cluster.event(about, "Cordoned", "Cordon", "x" * 2000)
                await cluster.event(about, "Cordoned", "Cordon", "x" * 2000)

        asyncio.run(scene())
        starved, cordoned = sorted(self.told(namespace, "w"), key=lambda one: str(one["reason"]))
        assert starved["type"] == "Warning"
        assert starved["series"]["count"] == 4
        assert starved["reportingInstance"] == "me"
        assert cordoned["type"] == "Normal"
        assert cordoned["series"]["count"] == 2, "what had waited was written at the end"
        assert len(cordoned["note"]) == 1024
        assert "BudgetStarved" in namespace.kubectl("describe", "lw", "w")

    def test_of_a_kind_without_a_namespace_and_after_its_event_has_gone(
        self, stanch: Installed, tmp_path: Path
    ) -> None:
        about = {"apiVersion": "v1", "kind": "Node", "name": f"none-{time.time_ns()}", "uid": "1"}
        now = [time.time()]
        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        query = f"?fieldSelector=regarding.name={about['name']}"

        async def scene() -> None:
            async with Cluster(stanch.kubeconfig(tmp_path / "kubeconfig"), clock=lambda: now[0]) as cluster:
                await cluster.event(about, "Looked", "Look", "at it")
                first = stanch.cluster.api(path + query)["items"][0]["metadata"]["name"]
                stanch.cluster.api(f"{path}/{first}", "DELETE")
                for _ in range(2):
                    now[0] += 61
                    await cluster.event(about, "Looked", "Look", "at it")
                again = stanch.cluster.api(path + query)["items"]
                assert [one["metadata"]["name"] == first for one in again] == [False]
                stanch.cluster.api(f"{path}/{again[0]['metadata']['name']}", "DELETE")

        asyncio.run(scene())


def test_a_list_shows_what_was_written_before(namespace: Namespace, speaker: Speaker) -> None:
    async def scene(cluster: Cluster) -> None:
        for number in range(10):
            await cluster.create_incident(namespace.name, incident(f"i{number}"))
            assert len((await cluster.incidents(namespace.name)).items) == number + 1

    speaker.run(scene)
