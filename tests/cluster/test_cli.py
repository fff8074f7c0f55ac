"""`stanch incidents`, `remediate`, `plan` and `doctor` on a real API server, with simulated engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed import manifests
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, Scene, ending

pytestmark = pytest.mark.cluster

_SECONDS = 120.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """`stanch` as an administrator runs it, in one namespace unless told otherwise."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def __call__(self, command: str, *arguments: str, kubeconfig: str | None = None) -> Done:
        config = kubeconfig or str(self.namespace.cluster.kubeconfig)
        where = () if "-A" in arguments else ("-n", self.namespace.name)
        done = subprocess.run(
            [sys.executable, "-m", "stanch", command, *where, *arguments],
            env={**os.environ, "NO_COLOR": "1", "KUBECONFIG": config},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def cli(namespace: Namespace, stanch: Installed) -> Cli:
    return Cli(namespace)


@pytest.fixture
def scene(namespace: Namespace, stanch: Installed, tmp_path: Path) -> Scene:
    """With an operator that only some tests start."""
    return Scene(
        namespace, Operator(stanch.kubeconfig(tmp_path / "operator.conf"), tmp_path / "operator.log")
    )


@pytest.fixture
def nobody(namespace: Namespace, stanch: Installed, tmp_path: Path) -> str:
    """The kubeconfig of an account without rights."""
    namespace.kubectl("create", "serviceaccount", "nobody")
    token = stanch.token("nobody", namespace.name)
    return stanch.kubeconfig(tmp_path / "nobody.conf", token=token)


class TestRemediate:
    def test_a_person_s_incident(self, cli: Cli, scene: Scene) -> None:
        scene.engines(prefill=())
        pod = scene.namespace.pod("d0")
        assert pod is not None
        done = cli("remediate", "d0", "--reason", "cache full since noon")
        assert (done.code, done.err) == (0, "")
        (made,) = scene.incidents()
        assert made["metadata"]["name"] in done.out
        assert made["metadata"]["name"].startswith("d0-")
        assert made["spec"] == {
            "podRef": {"name": "d0", "uid": pod["metadata"]["uid"]},
            "trigger": {"type": "Person", "by": "admin", "reason": "cache full since noon"},
            "ttlSecondsAfterFinished": 604800,
        }
        listed = cli("incidents")
        assert (listed.code, listed.err) == (0, "")
        assert made["metadata"]["name"] in listed.out
        assert "not looked at yet" in listed.out
        assert listed.out.endswith("1 open\n")
        (data,) = cli("incidents", "-A", "--output", "json").objects
        assert (data["schema"], data["namespace"]) == ("stanch.incident/1", scene.namespace.name)
        assert data["spec"]["podRef"] == made["spec"]["podRef"]

    def test_what_the_server_does_not_take_is_one_sentence(self, cli: Cli, scene: Scene) -> None:
        done = cli("remediate", "d9")
        assert (done.code, done.out) == (1, "")
        assert done.err == f"refused: there is no pod d9 in namespace {cli.namespace.name}\n"
        scene.engines(prefill=())
        done = cli("remediate", "d0", "--reason", "x" * 1025)
        assert (done.code, done.err) == (
            1,
            "refused: spec.trigger.reason: Too long: may not be more than 1024 bytes\n",
        )
        assert scene.incidents() == []

    def test_who_may_not(self, cli: Cli, scene: Scene, nobody: str) -> None:
        scene.engines(prefill=())
        done = cli("remediate", "d0", kubeconfig=nobody)
        assert (done.code, done.out) == (1, "")
        assert "is forbidden" in done.err
        assert done.err.count("\n") == 1
        done = cli("incidents", kubeconfig=nobody)
        assert (done.code, "is forbidden" in done.err) == (3, True)

    def test_it_is_repaired_by_the_operator_and_the_list_says_so(
        self, cli: Cli, scene: Scene, stanch: Installed, tmp_path: Path
    ) -> None:
        # The watchdog itself would wait for an hour.
        scene.engines().watch(signatures={"parkedRemoteKvSeconds": 3600, "heldIdleSeconds": 3600})
        scene.leak()
        with operating(stanch, tmp_path):
            scene.until_watching()
            assert cli("remediate", "d0").code == 0
            found = scene.ended()
        assert ending(found) in ("Resolved", "Recovered"), found["status"]
        assert cli("incidents").out.startswith("no incident is open")
        shown = cli("incidents", "--all").out
        assert found["metadata"]["name"] in shown
        assert ending(found) in shown
        assert shown.endswith("0 open, 1 ended\n")


class TestPlan:
    def test_a_leak_that_would_be_released(self, cli: Cli, scene: Scene) -> None:
        scene.engines(decode=("d0", "d1")).watch("Observe")
        scene.leak()
        unit = f"{scene.namespace.name}/d0"

        def planned() -> dict[str, Any] | None:
            (data,) = cli("plan", "shop", "--output", "json").objects
            return data if any(one["steps"] for one in data["units"]) else None

        data = wait_for("a plan", planned, PATIENCE_S)
        assert (data["mode"], data["engines"]) == ("Observe", 3)
        (found,) = data["units"]
        assert (found["unit"], found["signature"], found["incident"]) == (unit, "ParkedRemoteKV", None)
        assert [step["name"] for step in found["steps"]] == ["Observe", "Confirm", "Release"]
        assert found["steps"][-1]["outcome"] == "WouldDo"
        shown = cli("plan", "shop").out
        assert f"{unit}: ParkedRemoteKV: would release 3 stuck requests of {unit}" in shown
        # Nothing was written, and nothing was done.
        assert scene.held("d0") == 3
        assert scene.incidents() == []
        assert scene.marks("d0") == {}
        assert not scene.watched().get("status", {}).get("suspects")

    def test_nothing_is_wrong(self, cli: Cli, scene: Scene) -> None:
        scene.engines().watch()
        done = cli("plan", "shop")
        assert (done.code, done.err) == (0, "")
        name = scene.namespace.name
        assert done.out == (
            f"{name}/shop: mode Enforce\nnothing to do: 2 engines read, and none shows anything\n"
        )

    def test_no_such_watch(self, cli: Cli) -> None:
        done = cli("plan", "shop")
        assert (done.code, done.err) == (
            3,
            f"cannot tell: there is no LeakWatch shop in namespace {cli.namespace.name}\n",
        )


class TestDoctor:
    def marks(self, done: Done) -> dict[tuple[str, str], str]:
        return {(one["about"].rpartition("/")[2], one["check"]): one["state"] for one in done.objects}

    def test_a_fleet_with_all_sorts_of_pods(self, cli: Cli, scene: Scene) -> None:
        scene.engines().watch("Observe")
        no_volume = manifests.engine("d2", "decode")
        no_volume["spec"]["containers"][0]["volumeMounts"] = []
        scene.namespace.apply(manifests.engine("d1", "decode", ["--no-kit"], kit=False), no_volume)
        scene.namespace.wait_ready("d1", "d2")
        done = cli("doctor", "--output", "json")
        found = self.marks(done)
        assert done.code == 2
        for pod, states in {
            "d0": {"metrics": "ok", "kit": "ok", "commands": "ok", "cordon": "ok", "repair": "ok"},
            # It could only be evicted, and nobody would make it anew.
            "d1": {"metrics": "ok", "kit": "warn", "cordon": "warn", "repair": "warn"},
            "d2": {"metrics": "ok", "kit": "ok", "commands": "fail", "cordon": "ok", "repair": "ok"},
        }.items():
            assert {check: found.get((pod, check)) for check in states} == states, pod
        assert found["shop", "pods"] == "ok"
        assert {check: found["cluster", check] for check in ("version", "permission", "stop", "kinds")} == {
            "version": "ok",
            "permission": "ok",
            "stop": "ok",
            "kinds": "ok",
        }
        todo = {(one["about"].rpartition("/")[2], one["check"]): one["todo"] for one in done.objects}
        assert "downwardAPI" in todo["d2", "commands"]
        shown = cli("doctor").out.splitlines()
        assert len(shown) == len(done.objects) + 1

    def test_the_operator_s_lease(self, cli: Cli, stanch: Installed, tmp_path: Path) -> None:
        with operating(stanch, tmp_path):
            found = self.marks(cli("doctor", "--output", "json"))
        assert found["cluster", "operator"] == "ok"

    def test_an_account_without_rights(self, cli: Cli, nobody: str) -> None:
        own = cli.namespace.name
        asked = cli("doctor", "--output", "json", "--operator-namespace", own, "--service-account", "nobody")
        lacks = [one for one in asked.objects if one["check"] == "permission"]
        assert asked.code == 2
        (lack,) = lacks
        assert (lack["state"], f"service account {own}/nobody may do nothing" in lack["says"]) == (
            "fail",
            True,
        )
        # Asked by itself: it may not even ask.
        done = cli("doctor", "--output", "json", kubeconfig=nobody)
        assert self.marks(done)["cluster", "permission"] == "cannot tell"
        assert done.code == 3
