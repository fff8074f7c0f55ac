"""Rounds of the controller of DisaggDeployments, one by one and without pods, against a real API server and
under the operator's own account: what ends them in the middle, and who else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch.api.deployment import DisaggDeployment
from stanch.edge.cluster import Cluster
from stanch.edge.cluster.refs import Request
from stanch.edge.cluster.transport import Transport
from stanch.edge.render import Place, Rendered, render
from tests.bed.cluster import Namespace, Object, wait_for
from tests.bed.faults import Drop, Fault, Hang, Refuse, Rule
from tests.bed.proxy import FaultProxy
from tests.cluster.disagg import Rounds, Shop, disagg, same, settled
from tests.cluster.installed import Installed, Speaker

pytestmark = pytest.mark.cluster

ROUTER = {"image": "stanch.test/router:1", "replicas": 0}


class KilledError(BaseException):
    """As a process that is killed: nothing of it goes on, and nothing that it knew is left."""


@pytest.fixture
def speaker(stanch: Installed, tmp_path: Path) -> Speaker:
    return Speaker(stanch.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def shop(stanch: Installed, namespace: Namespace) -> Shop:
    return Shop(namespace)


def rounds(speaker: Speaker, shop: Shop, times: int = 1, **more: Any) -> Rounds:
    """By a process that has just started; its rounds."""

    async def scene(cluster: Cluster) -> Rounds:
        found = Rounds(cluster, shop.namespace.name, **more)
        await found(times)
        return found

    return speaker.run(scene)


def made(shop: Shop) -> dict[str, tuple[str, str]]:
    return {name: same(one) for name, one in shop.objects().items()}


WHOLE = {
    "ServiceAccount shop-pods",
    "Service shop-prefill",
    "Service shop-prefill-headless",
    "Service shop-decode",
    "Service shop-decode-headless",
    "PodDisruptionBudget shop-prefill",
    "PodDisruptionBudget shop-decode",
    "Deployment shop-prefill",
    "Deployment shop-decode",
    "LeakWatch shop",
}
WITH_ROUTER = WHOLE | {"Service shop-router", "Deployment shop-router"}


class TestMade:
    def test_all_of_it_under_its_owner_and_again_without_a_write(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg())

        async def scene(cluster: Cluster) -> None:
            run = Rounds(cluster, shop.namespace.name)
            await run()
            for name in ("shop-prefill", "shop-decode"):
                wait_for(f"{name}'s controller", lambda n=name: settled(shop.must("Deployment", n)))  # type: ignore[misc]
            # What it has said is told on.
            await run()
            before = made(shop)
            assert set(before) == WHOLE
            sent = count(cluster)
            await run(3)
            assert made(shop) == before
            assert not [one for one in sent if one.verb not in ("list", "get")]

        speaker.run(scene)
        uid = shop.must("DisaggDeployment")["metadata"]["uid"]
        for one in shop.objects().values():
            (owner,) = one["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (uid, True)
            assert not owner.get("blockOwnerDeletion")
            assert "finalizers" not in one["metadata"]
        whole = shop.must("DisaggDeployment")
        assert "finalizers" not in whole["metadata"]
        assert not whole["metadata"].get("annotations", {}).keys() - {
            "kubectl.kubernetes.io/last-applied-configuration"
        }

    def test_another_process_applies_the_same_and_nothing_changes(self, shop: Shop, speaker: Speaker) -> None:
        """No generation of a Deployment moves, so a rollout that is under way is not disturbed."""
        shop.apply(disagg())
        rounds(speaker, shop)
        before = made(shop)
        rounds(speaker, shop, 2)
        assert made(shop) == before

    def test_what_is_not_known_is_not_made(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg())
        rounds(speaker, shop, image_name="")
        assert shop.condition("Ready") == "False NoKitImage"
        assert shop.condition("Degraded") == "True NoKitImage"
        assert shop.objects() == {}

    def test_a_router_that_is_taken_away_is_deleted_and_nothing_else(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        shop.apply(disagg(router=ROUTER))
        rounds(speaker, shop)
        before = made(shop)
        assert set(before) == WITH_ROUTER
        foreign = {**disagg("other"), "kind": "DisaggDeployment"}
        shop.apply(foreign)
        rounds(speaker, shop)
        shop.edit(lambda spec: spec.pop("router"))
        rounds(speaker, shop)
        wait_for("its end", lambda: shop.get("Deployment", "shop-router") is None)
        left = made(shop)
        assert {name for name in left if "other" not in name} == WHOLE
        assert len(left) == 2 * len(WHOLE)
        assert {name: left[name] for name in WHOLE} == {name: before[name] for name in WHOLE}


class TestDrift:
    def test_what_is_ours_is_put_right_and_what_is_not_is_left(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg(prefill=1, decode=0))

        async def scene(cluster: Cluster) -> Rounds:
            run = Rounds(cluster, shop.namespace.name)
            await run()
            spec = {"template": {"spec": {"serviceAccountName": "default", "hostNetwork": True}}}
            shop.patch("Deployment", "shop-decode", {"spec": spec})
            shop.patch("Deployment", "shop-prefill", {"metadata": {"labels": {"theirs": "x"}}})
            shop.patch("Service", "shop-decode", {"spec": {"selector": {"stanch.dev/role": "prefill"}}})
            shop.patch("LeakWatch", "shop", {"spec": {"mode": "Disabled"}})
            shop.namespace.kubectl("scale", "deployment", "shop-prefill", "--replicas=0")
            shop.namespace.kubectl("delete", "service", "shop-prefill-headless")
            shop.namespace.kubectl("delete", "serviceaccount", "shop-pods")
            await run()
            return run

        run = speaker.run(scene)
        pod = shop.must("Deployment", "shop-decode")["spec"]["template"]["spec"]
        assert (pod["serviceAccountName"], pod["hostNetwork"]) == ("shop-pods", True)
        prefill = shop.must("Deployment", "shop-prefill")
        assert prefill["metadata"]["labels"]["theirs"] == "x"
        assert prefill["spec"]["replicas"] == 1
        assert shop.must("Service", "shop-decode")["spec"]["selector"]["stanch.dev/role"] == "decode"
        assert shop.must("LeakWatch")["spec"]["mode"] == "Observe"
        assert set(shop.objects()) == WHOLE
        assert run.log.getvalue().count('"object-put-right"') == 4

    def test_marks_that_were_taken_away_come_back(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        before = shop.must("Service", "shop-decode")
        none = {"labels": {"app.kubernetes.io/managed-by": None, "stanch.dev/deployment": None}}
        shop.patch("Service", "shop-decode", {"metadata": none})
        shop.patch("Service", "shop-prefill", {"metadata": {"ownerReferences": []}})
        rounds(speaker, shop)
        after = shop.must("Service", "shop-decode")
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert shop.must("Service", "shop-prefill")["metadata"]["ownerReferences"]

    @pytest.mark.parametrize("scaled", [False, True], ids=["as it was", "scaled meanwhile"])
    def test_replicas_from_given_to_absent_stay(self, shop: Shop, speaker: Speaker, scaled: bool) -> None:
        shop.apply(disagg(decode=2, prefill=0))
        # Nothing is to be scheduled.
        shop.edit(lambda spec: spec["roles"][1]["template"]["spec"].update(nodeSelector={"none": "such"}))
        rounds(speaker, shop)
        if scaled:
            shop.namespace.kubectl("scale", "deployment", "shop-decode", "--replicas=4")
        shop.edit(lambda spec: spec["roles"][1].pop("replicas"))
        rounds(speaker, shop)
        assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == (4 if scaled else 2)
        shop.namespace.kubectl("scale", "deployment", "shop-decode", "--replicas=3")
        rounds(speaker, shop, 2)
        assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == 3
        shop.edit(lambda spec: spec["roles"][1].update(replicas=0))
        rounds(speaker, shop)
        assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == 0


class TestUpgrade:
    """Another image of the kit is what another version of Stanch is in any case."""

    def test_no_pod_is_replaced_before_the_spec_says_something_else_of_pods(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        before = made(shop)
        rounds(speaker, shop, 2, image_name="stanch.test/kit:2")
        assert made(shop) == before
        assert shop.condition("Outdated") == "True UpdateHeld"
        assert shop.condition("Degraded") == "False AsExpected"
        # What was edited is put right as it was, and not as it would be now.
        edited = {"spec": {"template": {"spec": {"serviceAccountName": "default"}}}}
        shop.patch("Deployment", "shop-decode", edited)
        rounds(speaker, shop, image_name="stanch.test/kit:2")
        assert kits(shop) == {"shop-prefill": "stanch.test/kit:1", "shop-decode": "stanch.test/kit:1"}
        pod = shop.must("Deployment", "shop-decode")["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == "shop-pods"
        shop.edit(lambda spec: spec["watch"].update(mode="Enforce"))
        shop.edit(lambda spec: spec["roles"][1].update(replicas=1))
        shop.edit(lambda spec: spec["roles"][1].update(replicas=0))
        rounds(speaker, shop, image_name="stanch.test/kit:2")
        assert shop.must("LeakWatch")["spec"]["mode"] == "Enforce"
        assert set(kits(shop).values()) == {"stanch.test/kit:1"}
        shop.edit(lambda spec: spec["roles"][1]["engine"].update(env=[{"name": "A", "value": "b"}]))
        rounds(speaker, shop, image_name="stanch.test/kit:2")
        assert set(kits(shop).values()) == {"stanch.test/kit:2"}
        assert shop.condition("Outdated") == "False UpToDate"

    def test_a_person_may_want_them_now(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        rounds(speaker, shop, image_name="stanch.test/kit:2")
        shop.namespace.kubectl("annotate", "disaggdeployment", "shop", "stanch.dev/update=now")
        rounds(speaker, shop, image_name="stanch.test/kit:2")
        assert set(kits(shop).values()) == {"stanch.test/kit:2"}
        assert shop.condition("Outdated") == "False UpToDate"


def kits(shop: Shop) -> dict[str, str]:
    """The kit's image by Deployment."""
    return {
        name: shop.must("Deployment", name)["spec"]["template"]["spec"]["initContainers"][0]["image"]
        for name in ("shop-prefill", "shop-decode")
    }


class TestWrong:
    def test_a_spec_that_cannot_be_rendered_touches_nothing(self, shop: Shop, speaker: Speaker) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        before = made(shop)

        def change(spec: Object) -> None:
            spec["roles"][1]["engine"]["args"] = ["--port=1"]
            spec["roles"][0]["engine"]["image"] = "stanch.test/other:1"

        shop.edit(change)
        rounds(speaker, shop)
        assert made(shop) == before
        assert shop.condition("Ready") == "False Invalid"
        assert "spec.roles[decode].engine.args[0]: " in shop.message("Ready")
        shop.edit(lambda spec: spec["roles"][1]["engine"].pop("args"))
        rounds(speaker, shop)
        assert shop.condition("Degraded") == "False AsExpected"
        assert made(shop)["Deployment shop-prefill"] != before["Deployment shop-prefill"]

    def test_a_template_that_the_server_refuses_is_never_half_applied(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        before = made(shop)

        def change(spec: Object) -> None:
            spec["roles"][0]["engine"]["image"] = "stanch.test/other:1"
            spec["roles"][1]["template"]["spec"]["tolerations"] = [{"operator": "Sometimes"}]
            spec["watch"]["mode"] = "Enforce"

        shop.edit(change)

        async def scene(cluster: Cluster) -> int:
            run = Rounds(cluster, shop.namespace.name)
            await run()
            sent = count(cluster)
            await run(3)
            return len([one for one in sent if one.verb == "patch"])

        assert speaker.run(scene) == 0, "what is refused is not tried again at once"
        assert made(shop) == before
        assert shop.condition("Ready") == "False Refused"
        message = shop.message("Ready")
        assert "Deployment shop-decode (role decode): " in message
        assert "tolerations" in message
        assert "prefill" not in message

    def test_an_unknown_field_of_a_template_is_refused_by_its_name(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        one = disagg()
        one["spec"]["roles"][1]["template"]["spec"]["hostNetwerk"] = True
        shop.apply(one)
        rounds(speaker, shop)
        assert shop.condition("Degraded") == "True Refused"
        assert "hostNetwerk" in shop.message("Ready")
        assert shop.objects() == {}

    def test_what_somebody_else_has_is_not_taken_over(self, shop: Shop, speaker: Speaker) -> None:
        theirs: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "shop-decode", "labels": {"app": "theirs"}},
            "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]},
        }
        shop.apply(theirs)
        before = shop.must("Service", "shop-decode")
        shop.apply(disagg())
        rounds(speaker, shop, 2)
        assert shop.condition("Ready") == "False Conflict"
        assert "Service shop-decode: somebody else made it" in shop.message("Ready")
        assert shop.must("Service", "shop-decode") == before
        assert set(shop.objects()) == {"Service shop-decode"}
        shop.namespace.kubectl("delete", "service", "shop-decode")
        rounds(speaker, shop)
        assert set(shop.objects()) == WHOLE

    def test_two_disaggdeployments_never_share_an_object(self, shop: Shop, speaker: Speaker) -> None:
        """shop-decode-headless is a name of both shop and, as its prefill's, of no other; the account is."""
        shop.apply(disagg(), disagg("other"))
        rounds(speaker, shop, 2)
        owners = {name: one["metadata"]["ownerReferences"][0]["name"] for name, one in shop.objects().items()}
        assert all(owner in name for name, owner in owners.items())
        assert len(owners) == 2 * len(WHOLE)


class TestDeleted:
    def test_left_by_orphaning_it_is_taken_back_by_one_of_the_same_name(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        before = made(shop)
        shop.namespace.kubectl("delete", "disaggdeployment", "shop", "--cascade=orphan", "--timeout=60s")
        assert set(shop.objects()) == WHOLE
        shop.apply(disagg())
        rounds(speaker, shop)
        after = made(shop)
        deployments = [name for name in WHOLE if name.startswith("Deployment")]
        assert {name: after[name] for name in deployments} == {name: before[name] for name in deployments}
        uid = shop.must("DisaggDeployment")["metadata"]["uid"]
        for one in shop.objects().values():
            assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [uid]

    @pytest.mark.parametrize("cascade", ["background", "foreground"])
    def test_all_of_it_goes_with_it_and_nothing_else(
        self, shop: Shop, speaker: Speaker, cascade: str
    ) -> None:
        shop.apply(disagg(), disagg("other"))
        rounds(speaker, shop)
        shop.namespace.kubectl("delete", "disaggdeployment", "shop", f"--cascade={cascade}", "--timeout=60s")

        def gone() -> bool:
            rounds(speaker, shop)
            return not any("shop" in name for name in shop.objects())

        wait_for("the end of its objects", gone)
        assert len(shop.objects()) == len(WHOLE)

    def test_one_of_the_same_name_waits_for_the_end_of_the_old_one(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        shop.apply(disagg())
        rounds(speaker, shop)
        # As long as this finalizer is there, one of its objects is on its way out.
        held = {"metadata": {"finalizers": ["stanch.test/held"]}}
        shop.patch("Service", "shop-decode", held)
        shop.namespace.kubectl("delete", "disaggdeployment", "shop", "--timeout=60s")
        wait_for("the end of the others", lambda: set(shop.objects()) == {"Service shop-decode"})
        shop.apply(disagg())
        rounds(speaker, shop)
        assert shop.condition("Ready") == "False Waiting"
        assert shop.condition("Degraded") == "False AsExpected"
        shop.patch("Service", "shop-decode", {"metadata": {"finalizers": None}})
        wait_for("its end", lambda: shop.get("Service", "shop-decode") is None)
        rounds(speaker, shop)
        assert set(shop.objects()) == WHOLE


class Killer:
    """Ends whatever sends the nth write, before or after it took effect; 0: never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.after, self.seen = 0, False, 0
        send = Transport.send

        async def sent(transport: Transport, request: Request, *rest: Any, **more: Any) -> bytes:
            if request.verb in ("get", "list") or request.query.get("dryRun"):
                return await send(transport, request, *rest, **more)
            self.seen += 1
            if self.seen == self.at and not self.after:
                raise KilledError
            answer = await send(transport, request, *rest, **more)
            if self.seen == self.at:
                raise KilledError
            return answer

        monkeypatch.setattr(Transport, "send", sent)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_each_of_its_writes_it_is_whole_in_the_end(
    shop: Shop, speaker: Speaker, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Each process lives up to one write further than the one before it. Then the spec is changed so that
    something is made, changed, handed over and deleted, and the same again."""
    killer = Killer(monkeypatch)
    killer.after = after

    def killed_at_each() -> int:
        for number in range(1, 100):
            killer.at, killer.seen = number, 0
            try:
                rounds(speaker, shop)
            except KilledError:
                continue
            return number
        raise AssertionError("it never comes to an end")

    shop.apply(disagg(router=ROUTER))
    assert killed_at_each() > 1
    assert set(shop.objects()) == WITH_ROUTER

    def change(spec: Object) -> None:
        del spec["router"]
        spec["roles"][0]["engine"]["image"] = "stanch.test/other:1"
        del spec["roles"][1]["replicas"]

    shop.edit(change)
    assert killed_at_each() > 1
    killer.at = 0
    wait_for("the end of the router", lambda: set(shop.objects()) == WHOLE)
    before = made(shop)
    rounds(speaker, shop)
    assert made(shop) == before
    (container,) = shop.must("Deployment", "shop-prefill")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "stanch.test/other:1"
    assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == 0


@pytest.fixture
def proxy(stanch: Installed) -> Iterator[FaultProxy]:
    with FaultProxy(stanch.address, trust=stanch.authority) as found:
        yield found


@pytest.mark.parametrize("verb", ["list", "patch", "update"])
@pytest.mark.parametrize(
    "fault",
    [
        Refuse(409),
        Refuse(429, retry_after_seconds=1),
        Refuse(500),
        Refuse(500, applied=True),
        Drop(),
        Drop(applied=True),
        Hang(),
    ],
    ids=["409", "429", "500", "500 applied", "drop", "drop applied", "hang"],
)
def test_while_the_server_is_in_trouble(
    stanch: Installed,
    shop: Shop,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    verb: str,
) -> None:
    """Each fault at the first, third and ninth call of its verb; afterwards it is whole, and still."""
    speaker = Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", url=proxy.url))
    shop.apply(disagg())
    for nth in (1, 3, 9):
        proxy.faults.add(Rule(fault, verb=verb, nth=nth))

    async def scene(cluster: Cluster) -> None:
        run = Rounds(cluster, shop.namespace.name)
        for _ in range(8):
            await run.whatever_comes()

    with monkeypatch.context() as soon:
        soon.setattr("stanch.edge.cluster.transport.REQUEST_SECONDS", 3.0)
        speaker.run(scene)
    assert proxy.faults.hit()
    proxy.faults.clear()
    assert set(shop.objects()) == WHOLE
    before = made(shop)
    rounds(speaker, shop)
    assert made(shop) == before
    assert shop.condition("Degraded") == "False AsExpected"


def test_trouble_is_said_of_a_spec_that_was_never_applied(
    stanch: Installed, shop: Shop, proxy: FaultProxy, tmp_path: Path
) -> None:
    speaker = Speaker(stanch.kubeconfig(tmp_path / "kubeconfig", url=proxy.url))
    shop.apply(disagg())
    proxy.faults.add(Rule(Refuse(503), verb="patch", times=None))
    rounds(speaker, shop)
    assert shop.condition("Ready") == "False NotApplied"
    assert shop.condition("Progressing") == "True NotApplied"
    assert shop.condition("Degraded") == "False AsExpected"


def test_two_that_both_believe_to_lead_do_not_fight(shop: Shop, speaker: Speaker) -> None:
    shop.apply(disagg(router=ROUTER))

    async def scene(cluster: Cluster) -> None:
        both = [Rounds(cluster, shop.namespace.name) for _ in range(2)]
        for _ in range(3):
            await asyncio.gather(*(one.whatever_comes() for one in both))

    speaker.run(scene)
    assert set(shop.objects()) == WITH_ROUTER
    generations = {name: one["metadata"].get("generation", 1) for name, one in shop.objects().items()}
    assert set(generations.values()) == {1}


def test_who_has_lost_the_lease_writes_nothing(shop: Shop, speaker: Speaker) -> None:
    shop.apply(disagg())

    async def scene(cluster: Cluster) -> None:
        run = Rounds(cluster, shop.namespace.name)
        run.leads = False
        await run.whatever_comes()

    speaker.run(scene)
    assert shop.objects() == {}
    assert "status" not in shop.must("DisaggDeployment")


def test_what_fails_at_one_is_no_matter_of_the_others(
    shop: Shop, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(deployment: DisaggDeployment, place: Place) -> Rendered:
        if deployment.metadata.name == "other":
            raise RuntimeError("a mistake of ours")
        return render(deployment, place)

    monkeypatch.setattr("stanch.edge.deployments_one.render", broken)
    shop.apply(disagg("other"), disagg())
    run = rounds(speaker, shop)
    assert set(shop.objects()) == WHOLE
    assert "a mistake of ours" in run.log.getvalue()


def count(cluster: Cluster) -> list[Request]:
    """The requests that it sends from now on."""
    found: list[Request] = []
    transport = cluster.making._transport
    send = transport.send

    async def sent(request: Request, *rest: Any, **more: Any) -> bytes:
        found.append(request)
        return await send(request, *rest, **more)

    transport.send = sent  # type: ignore[method-assign]
    return found
