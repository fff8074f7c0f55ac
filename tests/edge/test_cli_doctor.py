"""What `stanch doctor` makes of what it reads, what it says to do, and its exit codes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from stanch.api.watch import LeakWatch
from stanch.core.fleet import Capability, Pod, Unit, Way
from stanch.core.sample import Role
from stanch.edge import diagnosis, diagnosis_access, diagnosis_others, examination
from stanch.edge.cluster import Cluster
from stanch.edge.findings import Finding, Mark, exit_code, record
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.permissions import DEPLOYING, NEEDED, Guard, Permission, guards, lacking, policy_name
from tests.bed import manifests
from tests.edge.cli import Done, into_nothing
from tests.edge.fake_api import FakeApi, refusal
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm
from tests.edge.small_cluster import SmallCluster
from tests.edge.test_cli_incidents import run

pytestmark = pytest.mark.unit
row = pytest.param

REVIEWS = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"
RIGHTS = Path(__file__).parents[2] / "charts/stanch/files/rights"


def granted(file: str, *, own: bool = False) -> set[Permission]:
    rules = yaml.safe_load((RIGHTS / file).read_text())
    return {
        Permission(verb, group, resource, own, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_the_chart_grants_what_is_needed_and_nothing_else() -> None:
    everywhere = granted("namespaced.yaml") | granted("cluster.yaml")
    assert everywhere | granted("own.yaml", own=True) == set(NEEDED)
    assert granted("deployments.yaml") == set(DEPLOYING)
    assert len({*NEEDED, *DEPLOYING}) == len(NEEDED) + len(DEPLOYING)


@pytest.mark.parametrize(
    ("version", "mark"),
    [
        row("v1.35.4", Mark.OK, id="new"),
        row("v1.30.0", Mark.OK, id="oldest"),
        row("v1.33.5-gke.1080000", Mark.OK, id="gke"),
        row("v1.29.14", Mark.FAIL, id="too-old"),
        row("v2.0.0", Mark.OK, id="far-future"),
        row("something", Mark.UNKNOWN, id="no-version"),
    ],
)
def test_the_server_s_version(version: str, mark: Mark) -> None:
    found = diagnosis.server(version)
    assert (found.mark, version in found.says) == (mark, True)
    assert bool(found.todo) is (mark is Mark.FAIL)


def test_permissions() -> None:
    absent = [one for one in NEEDED if one.resource in ("pods", "pods/eviction")]
    found = diagnosis_access.permissions("service account a/b", absent, [])
    assert [(one.mark, one.says) for one in found] == [
        (Mark.FAIL, "service account a/b may not get, list, patch pods"),
        (Mark.FAIL, "service account a/b may not create pods/eviction"),
    ]
    assert [one.mark for one in diagnosis_access.permissions("it", [], [])] == [Mark.OK]
    nodes = [one for one in NEEDED if one.resource == "nodes"]
    (less,) = diagnosis_access.permissions("it", nodes, [], "shop")
    assert (less.mark, "rbac.nodes true" in less.todo) == (Mark.WARN, True)
    (nothing,) = diagnosis_access.permissions("service account a/b", [*NEEDED], [])
    assert (nothing.mark, "is Stanch installed" in nothing.says) == (Mark.FAIL, True)
    assert "--service-account" in nothing.todo
    elsewhere = [one for one in NEEDED if not one.own]
    (one,) = diagnosis_access.permissions("it", elsewhere, [], "lab")
    assert (one.mark, "may do nothing in namespace lab" in one.says) == (Mark.FAIL, True)
    (every,) = diagnosis_access.permissions("it", elsewhere, [])
    assert (every.mark, every.todo) == (Mark.UNKNOWN, "with watchNamespaces: look at each with -n")
    (_, more) = diagnosis_access.permissions("it", [], [Permission("get", "", "secrets")])
    assert (more.mark, more.says) == (Mark.WARN, "it may also get secrets: Stanch never does")


def test_the_rights_for_disaggdeployments_are_all_there_or_none() -> None:
    every = dict.fromkeys((*NEEDED, *DEPLOYING), True)
    assert lacking(every) == []
    assert lacking(every | dict.fromkeys(DEPLOYING, False)) == []
    first, *others = DEPLOYING
    assert lacking(every | dict.fromkeys(others, False)) == others
    assert lacking(every | {NEEDED[0]: False, first: False}) == [NEEDED[0], first]


ACCOUNT = "system:serviceaccount:stanch-system:stanch"


def admission(guard: Guard) -> tuple[dict[str, Any], dict[str, Any]]:
    """A policy and its binding, as far as is looked at (those of the chart: tests/cluster/test_chart.py)."""
    means = [{"name": "by-stanch", "expression": f"request.userInfo.username == '{ACCOUNT}'"}]
    return {"spec": {"matchConditions": means}}, {
        "spec": {"policyName": f"stanch-{guard.value}", "validationActions": ["Deny"]}
    }


@pytest.mark.parametrize("guard", Guard)
def test_an_admission_policy_that_holds(guard: Guard) -> None:
    found, binding = admission(guard)
    assert diagnosis_access.policy(ACCOUNT, guard, found, binding).mark is Mark.OK
    # Of who asks as the operator itself the name is not known.
    assert diagnosis_access.policy(None, guard, found, binding).mark is Mark.OK
    # Another account has a policy of another name.
    said = diagnosis_access.policy("system:serviceaccount:ops:heal", guard, None, None)
    assert f"there is no ValidatingAdmissionPolicy heal-{guard.value}" in said.says


@pytest.mark.parametrize("guard", Guard)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        row({"found": None}, "there is no ValidatingAdmissionPolicy stanch-{}:", id="no-policy"),
        row({"binding": None}, "no ValidatingAdmissionPolicyBinding stanch-{}:", id="no-binding"),
        row({"found": None, "binding": None}, "ValidatingAdmissionPolicyBinding", id="neither"),
        row({"actions": ["Audit"]}, "no Deny among the binding's validationActions", id="only-audited"),
        row(
            {"account": "system:serviceaccount:a:stanch"},
            "no match condition for system:ser",
            id="of-another",
        ),
    ],
)
def test_an_admission_policy_that_does_not_hold(what: dict[str, Any], words: str, guard: Guard) -> None:
    found, binding = admission(guard)
    binding["spec"]["validationActions"] = what.get("actions", ["Deny"])
    said = diagnosis_access.policy(
        what.get("account", ACCOUNT), guard, what.get("found", found), what.get("binding", binding)
    )
    assert (said.mark, words.format(guard.value) in said.says) == (Mark.WARN, True), said.says
    assert ("pod's image" in said.says) is (guard is Guard.PODS)
    assert "admissionPolicy.enabled" in said.todo


@pytest.mark.parametrize(
    ("may", "wanted"),
    [
        row(None, [Guard.PODS, Guard.WORKLOADS], id="not-known"),
        row({*NEEDED, *DEPLOYING}, [Guard.PODS, Guard.WORKLOADS], id="all"),
        row({*NEEDED}, [Guard.PODS], id="makes-no-deployments"),
        row({one for one in NEEDED if one.own}, [Guard.PODS, Guard.WORKLOADS], id="rights-elsewhere"),
        row(set(), [], id="not-installed"),
    ],
)
def test_which_admission_policies_matter(may: set[Permission] | None, wanted: list[Guard]) -> None:
    allowed = None if may is None else {one: one in may for one in (*NEEDED, *DEPLOYING)}
    assert [*guards(allowed)] == wanted


def lease(holder: str, renewed: str = "2026-11-29T12:00:00.000000Z") -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}}


NOON = 1_795_953_600.0


@pytest.mark.parametrize(
    ("found", "now", "mark", "words"),
    [
        row(lease("stanch-a"), NOON + 10, Mark.OK, "stanch-a is active", id="active"),
        row(lease("stanch-lift-pod-1"), NOON + 5, Mark.WARN, "keeps the Lease for 10 s more", id="lifted"),
        row(lease("stanch-lift-pod-1"), NOON + 20, Mark.FAIL, "no operator is active", id="lifted-long-ago"),
        row(lease("stanch-a"), NOON + 700, Mark.FAIL, "stanch-a was the last one, 12 min ago", id="gone"),
        row(lease(""), NOON, Mark.FAIL, "no operator is active", id="given-up"),
        row(None, NOON, Mark.FAIL, "no operator is active", id="never"),
        row({"spec": {"holderIdentity": "x"}}, NOON, Mark.FAIL, "no operator is active", id="no-time"),
    ],
)
def test_the_operator(found: dict[str, Any] | None, now: float, mark: Mark, words: str) -> None:
    said = diagnosis.operator(found, now)
    assert (said.mark, words in said.says) == (mark, True)


def release(where: str, watched: str = "", **spec: Any) -> dict[str, Any]:
    env = [
        {"name": "A", "value": "b"},
        *([{"name": "STANCH_WATCH_NAMESPACES", "value": watched}] * bool(watched)),
    ]
    containers = [{"name": "operator", "env": env}]
    return {
        "metadata": {"namespace": where, "name": "stanch"},
        "spec": {"template": {"spec": {"containers": containers}}, **spec},
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "namespace", "told"),
    [
        row("", "", None, True, id="both-all"),
        row("", "", "shop", True, id="both-all-one-asked"),
        row("", "shop,lab", "shop", True, id="theirs-some"),
        row("", "lab", "shop", False, id="not-the-one-asked"),
        row("", "lab", None, True, id="ours-all"),
        row("shop", "", None, True, id="theirs-all"),
        row("shop", "lab", None, False, id="side-by-side"),
        row("shop", "lab", "shop", False, id="side-by-side-one-asked"),
        row("shop,lab", "lab,x", None, True, id="overlap"),
        row("shop,lab", "lab,x", "shop", False, id="overlap-elsewhere"),
    ],
)
def test_another_operator(ours: str, theirs: str, namespace: str | None, told: bool) -> None:
    both = [release("stanch-system", ours), release("ops", theirs)]
    found = diagnosis_others.others(both, "stanch-system", namespace)
    assert [(one.mark, "ops/stanch watches" in one.says) for one in found] == [(Mark.FAIL, True)] * told


def test_another_operator_that_is_none() -> None:
    assert diagnosis_others.others([release("stanch-system")], "stanch-system", None) == []
    stopped = release("ops", replicas=0)
    assert diagnosis_others.others([release("stanch-system"), stopped], "stanch-system", None) == []
    # Where none of ours is found, nothing is known of what it watches.
    assert diagnosis_others.others([release("ops")], "stanch-system", None) == []


def watch(**spec: Any) -> LeakWatch:
    roles = [{"name": "decode", "selector": {"matchLabels": {"app": "a"}}}]
    meta = {"name": "decodes", "namespace": "shop"}
    return LeakWatch.model_validate({"metadata": meta, "spec": {"roles": roles, **spec}})


@pytest.mark.parametrize(
    ("spec", "mark", "words"),
    [
        row({}, Mark.OK, "Observe", id="default"),
        row({"mode": "Disabled"}, Mark.WARN, "not watched", id="disabled"),
        row({"mode": "Enforce"}, Mark.OK, "may Release, Restart, Evict; approval Auto", id="enforce"),
        row({"mode": "Enforce", "remediation": {"paused": True}}, Mark.WARN, "paused", id="paused"),
    ],
)
def test_mode(spec: dict[str, Any], mark: Mark, words: str) -> None:
    found = diagnosis.mode(watch(**spec))
    assert (found.about, found.mark, words in found.says) == ("shop/decodes", mark, True)


def test_what_a_watch_selects() -> None:
    good, bad = diagnosis.selected(
        watch(), ["decode", "prefill", "decode"], [("d9", "it has no container x")]
    )
    assert (good.mark, good.says) == (Mark.OK, "selects 2 decode, 1 prefill")
    assert (bad.about, bad.mark, bad.says) == ("shop/d9", Mark.FAIL, "it has no container x")
    (none,) = diagnosis.selected(watch(), [], [])
    assert (none.mark, none.todo) == (Mark.FAIL, "compare spec.roles with the pods")


@pytest.mark.parametrize(
    ("version", "mark"),
    [("0.29.0", Mark.WARN), ("0.30.0", Mark.OK), (None, Mark.UNKNOWN), ("0.0.0+dev", Mark.UNKNOWN)],
)
def test_the_engine_s_version(version: str | None, mark: Mark) -> None:
    assert diagnosis.engine_version("shop/d0", version).mark is mark


@pytest.mark.parametrize(
    ("said", "mark", "words"),
    [
        row(
            Facts("b", kit="0.1.0", connector="NixlConnector"), Mark.OK, "kit 0.1.0, connector Nixl", id="kit"
        ),
        row(Facts("b"), Mark.OK, "kit of an unknown version, connector none", id="says-little"),
        row(Facts("b", disabled="20 errors"), Mark.FAIL, "it turned itself off: 20 errors", id="off"),
        row(KitError("it has no engine kit", absent=True), Mark.WARN, "it has no engine kit", id="none"),
        row(KitError("its kit did not answer within 4 s"), Mark.UNKNOWN, "did not answer", id="silent"),
    ],
)
def test_the_kit(said: Facts | KitError, mark: Mark, words: str) -> None:
    found = diagnosis.kit("shop/d0", said)
    assert (found.mark, words in found.says) == (mark, True)
    assert bool(found.todo) is (mark is not Mark.OK)


def test_an_engine_that_wants_a_key() -> None:
    (said,) = diagnosis_access.key("shop/d0", True)
    assert (said.mark, "--api-key" in said.says, "apiKeys" in said.todo) == (Mark.FAIL, True, True)
    assert diagnosis_access.key("shop/d0", False) == []


def examined(directory: Path, *, kit: bool, locked: bool, key: str | None = None) -> list[Finding]:
    """Of a watch over one pod, by HTTP, as doctor has it. locked: it was started with --api-key."""

    async def whole() -> list[Finding]:
        async with SmallCluster(directory) as small, FakeVllm() as engine:
            engine.models_status = 401 if locked else 200
            if kit:
                engine.kit = FakeKit(entry())
                engine.kit.key = "secret" if locked else None
            small.pod("d0", engine)
            small.watch()
            found = LeakWatch.model_validate(small.objects["leakwatches", "shop"])
            async with Cluster(small.config, own_namespace="stanch-system") as cluster:
                return await examination.of_watch(cluster, found, lambda: key)

    return asyncio.run(whole())


@pytest.mark.parametrize("kit", [True, False])
def test_a_key_is_found_out_by_what_the_operator_asks(tmp_path: Path, kit: bool) -> None:
    locked = examined(tmp_path, kit=kit, locked=True)
    assert [(one.about, one.mark) for one in locked if one.check == "API key"] == [("shop/d0", Mark.FAIL)]
    # The rest is open without a key, and as well as before.
    free = examined(tmp_path, kit=kit, locked=False)
    assert [(one.check, one.mark) for one in locked if one.check != "API key"] == [
        (one.check, one.mark) for one in free
    ]


@pytest.mark.parametrize(("key", "mark"), [("secret", Mark.OK), ("old", Mark.FAIL)])
def test_a_key_that_is_given_is_tried(tmp_path: Path, key: str, mark: Mark) -> None:
    found = examined(tmp_path, kit=True, locked=True, key=key)
    assert [one.mark for one in found if one.check == "API key"] == [mark]


def with_volume(**volume: Any) -> dict[str, Any]:
    pod = manifests.engine("d0", "decode")
    pod["spec"]["volumes"] = [{"name": "podinfo", **volume}]
    return pod


LABELS = {"fieldPath": "metadata.labels"}
ITEMS = [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]


class TestCommands:
    def test_the_bed_s_own_pods_are_well(self) -> None:
        assert diagnosis.commands("p", manifests.engine("d0", "decode"), "vllm").mark is Mark.OK

    def test_a_projected_volume_will_do(self) -> None:
        projected = {"sources": [{"secret": {}}, {"downwardAPI": {"items": ITEMS}}]}
        assert diagnosis.commands("p", with_volume(projected=projected), "vllm").mark is Mark.OK

    @pytest.mark.parametrize(
        "volume",
        [
            row({"emptyDir": {}}, id="another-volume"),
            row({"downwardAPI": {"items": [{"path": "labels", "fieldRef": LABELS}]}}, id="labels"),
        ],
    )
    def test_another_volume_does_not(self, volume: dict[str, Any]) -> None:
        found = diagnosis.commands("p", with_volume(**volume), "vllm")
        assert (found.mark, "no volume shows it its annotations" in found.says) == (Mark.FAIL, True)

    def test_mounted_by_sub_path_it_is_never_updated(self) -> None:
        pod = manifests.engine("d0", "decode")
        pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = "annotations"
        found = diagnosis.commands("p", pod, "vllm")
        assert (found.mark, "is not mounted as a whole" in found.says) == (Mark.FAIL, True)

    def test_mounted_in_another_container_it_helps_nobody(self) -> None:
        pod = manifests.engine("d0", "decode")
        pod["spec"]["containers"].append({"name": "proxy"})
        assert diagnosis.commands("p", pod, "proxy").mark is Mark.FAIL


def unit(**more: Any) -> Unit:
    pod = Pod("d0", "u", "c", True, True, capability=more.pop("capability", Capability.READINESS))
    return Unit("shop/d0", Role.DECODE, (pod,), ("d0",), **more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        row(unit(), "its container is restarted in place", id="in-place"),
        row(unit(way=Way.GROUP), "a restart replaces its whole group", id="group"),
        row(
            unit(way=Way.EVICT, way_why="it is a bare process"),
            "it is evicted, because it is a bare",
            id="evict",
        ),
        row(unit(capability=Capability.NONE), "it is evicted, because it cannot be cordoned", id="no-cordon"),
    ],
)
def test_repair(found: Unit, words: str) -> None:
    (said,) = diagnosis.repair("shop/d0", found)
    assert (said.mark, said.says.startswith(words)) == (Mark.OK, True)


@pytest.mark.parametrize("way", [Way.EVICT, Way.IN_PLACE])
def test_a_pod_that_nobody_would_make_anew(way: Way) -> None:
    """It matters where it would be evicted."""
    lone = unit(way=way, way_why="it is bare", not_remade="no controller owns it: make it again")
    (said,) = diagnosis.repair("shop/d0", lone)
    if way is Way.IN_PLACE:
        assert said.mark is Mark.OK
    else:
        assert (said.mark, said.todo) == (Mark.WARN, lone.not_remade)
        assert said.says == "none but a release: it would have to be evicted, because it is bare"


def test_a_conflict() -> None:
    _, said = diagnosis.repair("shop/d0", unit(conflict="LeakWatch other"))
    assert (said.mark, said.says) == (Mark.FAIL, "LeakWatch other selects it too, so neither repairs it")


def test_cordon() -> None:
    assert diagnosis.cordon("p", Capability.READINESS).mark is Mark.OK
    none = diagnosis.cordon("p", Capability.NONE)
    assert (none.mark, "/stanch/v1/ready" in none.todo) == (Mark.WARN, True)


@pytest.mark.parametrize(
    ("marks", "code"),
    [
        ([Mark.OK, Mark.OK], 0),
        ([Mark.OK, Mark.WARN], 1),
        ([Mark.WARN, Mark.UNKNOWN], 3),
        ([Mark.UNKNOWN, Mark.FAIL], 2),
        ([], 3),
    ],
)
def test_exit_codes(marks: list[Mark], code: int) -> None:
    assert exit_code(Finding("a", "b", mark, "") for mark in marks) == code


def test_data() -> None:
    assert record(Finding("shop/d0", "kit", Mark.WARN, "none", "load it")) == {
        "schema": "stanch.finding/1",
        "about": "shop/d0",
        "check": "kit",
        "state": "warn",
        "says": "none",
        "todo": "load it",
    }
    assert record(Finding("cluster", "stop", Mark.OK, "no"))["todo"] is None


def test_a_cluster_without_the_kinds(tmp_path: Path) -> None:
    api = FakeApi()
    api.answers["GET /version"] = (200, {"gitVersion": "v1.29.0"})
    api.answers[REVIEWS] = (201, {"status": {"allowed": True}})
    done = run(api, tmp_path, "--output", "json", command="doctor")
    states = {one["check"]: one["state"] for one in done.objects}
    assert (done.code, done.err) == (2, "")
    assert states["version"] == "fail"
    assert states["kinds"] == "fail"
    assert states["operator"] == "fail"
    policies = [(one["state"], one["says"]) for one in done.objects if one["check"] == "policy"]
    assert [state for state, _ in policies] == ["warn", "warn"]
    assert all(
        name in says for name, (_, says) in zip(("stanch-pods", "stanch-workloads"), policies, strict=True)
    )
    spec = next(body["spec"] for key, body in api.asked if key == REVIEWS)
    assert spec["user"] == "system:serviceaccount:stanch-system:stanch"
    assert "system:serviceaccounts:stanch-system" in spec["groups"]


def test_before_anything_is_installed(tmp_path: Path) -> None:
    """What there is to do is to install it: nothing is said of values of a release that there is not."""
    api = FakeApi()
    api.answers["GET /version"] = (200, {"gitVersion": "v1.35.4"})
    api.answers[REVIEWS] = (201, {"status": {"allowed": False}})
    done = run(api, tmp_path, "--output", "json", command="doctor")
    assert done.code == 2
    todo = {one["check"]: one["todo"] or "" for one in done.objects}
    assert "policy" not in todo
    assert not any("upgrade" in one for one in todo.values())
    assert "helm install" in todo["permission"]
    assert "helm install" in todo["kinds"]
    assert not any("admissionregistration" in key for key, _ in api.asked)


def test_a_reader_that_has_gone_changes_no_answer(tmp_path: Path) -> None:
    async def scene() -> Done:
        async with FakeApi() as api:
            api.answers["GET /version"] = (200, {"gitVersion": "v1.35.4"})
            api.answers[REVIEWS] = (201, {"status": {"allowed": False}})
            return await into_nothing("doctor", "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    done = asyncio.run(scene())
    assert (done.code, done.err) == (2, "")


def test_an_admission_policy_that_may_not_be_read(tmp_path: Path) -> None:
    api = FakeApi()
    api.answers["GET /version"] = (200, {"gitVersion": "v1.35.4"})
    api.answers[REVIEWS] = (201, {"status": {"allowed": True}})
    kinds = [
        {"name": "validatingadmissionpolicies", "kind": "ValidatingAdmissionPolicy", "namespaced": False},
        {
            "name": "validatingadmissionpolicybindings",
            "kind": "ValidatingAdmissionPolicyBinding",
            "namespaced": False,
        },
    ]
    group = "/apis/admissionregistration.k8s.io/v1"
    api.answers[f"GET {group}"] = (200, {"resources": kinds})
    for one in kinds:
        refused = refusal(403, "Forbidden", f'User "jane" cannot get resource "{one["name"]}"')
        for guard in Guard:
            api.answers[f"GET {group}/{one['name']}/{policy_name(None, guard)}"] = refused
    both = [
        one
        for one in run(api, tmp_path, "--output", "json", command="doctor").objects
        if one["check"] == "policy"
    ]
    for said, guard in zip(both, Guard, strict=True):
        assert said["state"] == "cannot tell"
        assert 'User "jane" cannot get resource' in said["says"]
        assert "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings" in said["todo"]
        assert said["todo"].endswith(policy_name(None, guard))


def test_no_server(tmp_path: Path) -> None:
    done = run(FakeApi(), tmp_path, command="doctor")
    assert (done.code, done.out, done.err.startswith("cannot tell: ")) == (3, "", True)
