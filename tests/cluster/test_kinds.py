"""The kinds on real API servers, the bed's and the oldest supported: what applies, what is refused, how."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stanch.api.generate import KINDS, crd
from tests.api.kinds_files import EXAMPLES, TOP, WRONG, expected, read
from tests.bed.cluster import Cluster, KubectlError, wait_for
from tests.bed.oldest import OldestApi

pytestmark = pytest.mark.cluster

CRDS = str(TOP / "crds")


@dataclass(frozen=True)
class Server:
    """ask: kubectl with these arguments and standard input; exit code 0 or not, and what it printed."""

    ask: Callable[[Sequence[str], str | None], tuple[bool, str]]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        good, said = self.ask(arguments, stdin)
        assert good, said
        return said

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        good, said = self.ask(arguments, stdin)
        assert not good, f"was taken: {said}"
        return said


def of_cluster(cluster: Cluster) -> Server:
    def ask(arguments: Sequence[str], stdin: str | None) -> tuple[bool, str]:
        try:
            return True, cluster.kubectl(*arguments, stdin=stdin)
        except KubectlError as error:
            return False, str(error)

    return Server(ask)


def of_oldest(api: OldestApi) -> Server:
    def ask(arguments: Sequence[str], stdin: str | None) -> tuple[bool, str]:
        done = api.kubectl(*arguments, stdin=stdin)
        return done.returncode == 0, done.stdout + done.stderr

    return Server(ask)


@pytest.fixture(scope="module", params=["bed", "oldest"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the kinds; they are taken away again."""
    if request.param == "bed":
        yield from installed(of_cluster(request.getfixturevalue("cluster")))
        return
    directory: Path = tmp_path_factory.mktemp("oldest")
    with OldestApi(directory) as api:
        yield from installed(of_oldest(api))


def installed(server: Server) -> Iterator[Server]:
    server.kubectl("apply", "--server-side", "-f", CRDS)
    names = [f"crd/{kind.crd}" for kind, _ in KINDS]
    server.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    for kind, _ in KINDS:
        wait_for(kind.plural, lambda kind=kind: server.ask(["get", kind.plural], None)[0])  # type: ignore[misc]
    yield server
    server.kubectl("delete", "-f", CRDS, "--ignore-not-found")


@pytest.fixture
def clean(server: Server) -> Iterator[Server]:
    yield server
    server.kubectl("delete", "stanch", "--all")


def test_the_definitions_are_structural_and_taken_as_they_are(server: Server) -> None:
    """What the server keeps of a schema is what the files say: nothing was dropped or added in silence."""
    for kind, model in KINDS:
        found = json.loads(server.kubectl("get", "crd", kind.crd, "-o", "json"))
        conditions = {one["type"]: one["status"] for one in found["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        (version,) = found["spec"]["versions"]
        (ours,) = crd(kind, model)["spec"]["versions"]
        assert version["schema"] == ours["schema"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_applies(clean: Server, path: Path) -> None:
    clean.kubectl("apply", "-f", str(path))
    clean.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    assert "serverside-applied" in clean.kubectl("apply", "--server-side", "-f", str(path))


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_one_is_refused_with_a_message_that_helps(clean: Server, path: Path) -> None:
    said = clean.refusal("apply", "-f", str(path))
    words = expected(path)
    assert words in said, said
    assert "runtime error" not in said


def applied(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        server.kubectl("apply", "-o", "json", "-f", str(TOP / "docs" / "examples" / f"{name}.yaml"))
    )
    return found


def test_defaults_are_filled_in(clean: Server) -> None:
    spec = applied(clean, "leakwatch-minimal")["spec"]
    assert (spec["mode"], spec["source"], spec["intervalSeconds"]) == ("Observe", "Scrape", 5)
    assert spec["remediation"]["maxUnavailable"] == 1
    assert spec["remediation"]["breaker"] == {"failures": 3, "windowSeconds": 3600}
    assert spec["canary"] == {"enabled": True, "timeoutSeconds": 30}
    assert spec["signatures"] == {}
    # The engine's own arguments say its port.
    assert "ports" not in spec["roles"][0]
    assert applied(clean, "leakincident")["spec"]["trigger"]["type"] == "Person"


def test_a_deployment_gets_the_defaults_of_its_parts(clean: Server) -> None:
    spec = applied(clean, "disaggdeployment-minimal")["spec"]
    assert spec["kvTransfer"] == {"connector": "NixlConnector", "mode": "Pull", "connectorPatch": "Auto"}
    assert (spec["watch"]["mode"], spec["watch"]["remediation"]["drainSeconds"]) == ("Observe", 60)
    role = spec["roles"][0]
    assert (role["rollout"], role["parallelism"]) == (
        {"maxSurge": 0, "maxUnavailable": 1},
        {"tensor": 1, "data": 1},
    )
    assert role["engine"]["port"] == 8000
    assert "disruptionBudget" not in role


def test_a_template_is_kept_as_it_was_written_but_null_is_up_to_kubectl(clean: Server) -> None:
    """Server-side apply keeps a null in it, which takes away what is made by default."""
    found = read(TOP / "docs" / "examples" / "disaggdeployment-minimal.yaml")
    container = {"name": "vllm", "livenessProbe": None, "x": {"y": [1, "2", None]}}
    found["spec"]["roles"][0]["template"] = {"spec": {"containers": [container]}, "metadata": {}}
    made = clean.kubectl("apply", "--server-side", "-o", "json", "-f", "-", stdin=json.dumps(found))
    template = json.loads(made)["spec"]["roles"][0]["template"]
    assert template == {"spec": {"containers": [container]}, "metadata": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"podRef": {"name": "another"}},
        {"podRef": {"name": "shop-decode-0", "uid": "1"}},
        {"trigger": {"type": "Watchdog"}},
        {"ttlSecondsAfterFinished": 7200},
    ],
    ids=["pod", "uid", "trigger", "ttl"],
)
def test_an_incidents_spec_cannot_be_changed(clean: Server, change: dict[str, Any]) -> None:
    applied(clean, "leakincident")
    patch = json.dumps({"spec": change})
    said = clean.refusal("patch", "li", "look-at-decode-0", "--type=merge", "-p", patch)
    assert "spec cannot be changed: delete this incident and make another" in said
    clean.kubectl("annotate", "li", "look-at-decode-0", "stanch.dev/approve=true")


def test_status_is_a_subresource_and_ready_can_be_waited_for(clean: Server) -> None:
    applied(clean, "leakwatch-minimal")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Watching",
        "message": "",
        "lastTransitionTime": "2026-11-29T22:00:00.123456Z",
    }
    status = json.dumps({"status": {"conditions": [ready], "suspectCount": 2}})
    clean.kubectl("patch", "lw", "shop", "--type=merge", "-p", status)
    assert "status" not in json.loads(clean.kubectl("get", "lw", "shop", "-o", "json"))
    clean.kubectl("patch", "lw", "shop", "--subresource=status", "--type=merge", "-p", status)
    clean.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "lw/shop")
    row = clean.kubectl("get", "lw", "shop").splitlines()[-1].split()
    assert row[:3] == ["shop", "Observe", "True"]
    assert "2" in row


def test_two_managers_may_each_own_a_role(clean: Server) -> None:
    def role(name: str) -> str:
        spec = {"roles": [{"name": name, "selector": {"matchLabels": {"role": name}}}]}
        return json.dumps(
            {
                "apiVersion": "stanch.dev/v1alpha1",
                "kind": "LeakWatch",
                "metadata": {"name": "shared"},
                "spec": spec,
            }
        )

    for name in ("decode", "prefill"):
        clean.kubectl("apply", "--server-side", f"--field-manager={name}", "-f", "-", stdin=role(name))
    found = json.loads(clean.kubectl("get", "lw", "shared", "-o", "json"))
    assert {one["name"] for one in found["spec"]["roles"]} == {"decode", "prefill"}


def test_names_for_people(clean: Server) -> None:
    applied(clean, "leakwatch-minimal")
    applied(clean, "leakincident")
    applied(clean, "disaggdeployment-minimal")
    for name in [word for kind, _ in KINDS for word in (kind.short, kind.singular, kind.plural)]:
        assert "NAME" in clean.kubectl("get", name)
    both = clean.kubectl("get", "stanch", "-o", "name")
    assert {line.split("/")[0] for line in both.split()} == {
        "leakwatch.stanch.dev",
        "leakincident.stanch.dev",
        "disaggdeployment.stanch.dev",
    }


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("leakwatch.spec.remediation.maxUnavailable", "A percentage rounds down"),
        ("leakwatch.spec.signatures.heldIdleSeconds", "Default: 60."),
        ("leakincident.status.steps.outcome", "absent while it is under way"),
        ("disaggdeployment.spec.kvTransfer.leaseSeconds", "vLLM 0.22 and later"),
    ],
)
def test_explain(server: Server, field: str, words: str) -> None:
    said = " ".join(server.kubectl("explain", field).split())
    assert words in said


def test_what_was_read_is_what_the_models_take(clean: Server) -> None:
    """A watch as the server gives it, defaults and metadata and all."""
    by_kind = {kind.kind: model for kind, model in KINDS}
    for path in EXAMPLES:
        clean.kubectl("apply", "-f", str(path))
        kind = read(path)["kind"]
        name = read(path)["metadata"]["name"]
        by_kind[kind].model_validate(json.loads(clean.kubectl("get", kind, name, "-o", "json")))
