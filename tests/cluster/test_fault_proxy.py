"""The fault proxy between kubectl and a real API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import pki
from tests.bed.cluster import Namespace
from tests.bed.config import kubeconfig
from tests.bed.faults import CutWatch, Refuse, Rule
from tests.bed.proxy import FaultProxy

pytestmark = pytest.mark.cluster

NOTE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}}


class Through:
    """kubectl as a service account that may edit ConfigMaps, through the proxy."""

    def __init__(self, namespace: Namespace, proxy: FaultProxy, directory: Path) -> None:
        self.proxy = proxy
        self._kubectl = namespace.cluster.access.kubectl
        self._namespace = namespace.name
        self._config = directory / "kubeconfig"
        token = namespace.kubectl("create", "token", "editor").strip()
        authority = directory / "pki/ca.crt"
        self._config.write_text(kubeconfig("through-the-proxy", proxy.url, authority, token))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [
            self._kubectl,
            f"--kubeconfig={self._config}",
            f"--namespace={self._namespace}",
            *arguments,
        ]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture
def through(namespace: Namespace, tmp_path: Path) -> Iterator[Through]:
    namespace.kubectl("create", "serviceaccount", "editor")
    namespace.kubectl("create", "role", "editor", "--resource=configmaps", "--verb=*")
    account = f"--serviceaccount={namespace.name}:editor"
    namespace.kubectl("create", "rolebinding", "editor", "--role=editor", account)
    address, authority = namespace.cluster.server()
    trust = None
    if authority is not None:
        trust = tmp_path / "ca.crt"
        trust.write_text(authority)
    pki.write(tmp_path / "pki")
    certificate = (tmp_path / "pki/api.crt", tmp_path / "pki/api.key")
    with FaultProxy(address, trust=trust, certificate=certificate) as proxy:
        yield Through(namespace, proxy, tmp_path)


def test_calls_go_through_under_the_clients_own_account(through: Through) -> None:
    assert through.kubectl("apply", "-f", "-", stdin=json.dumps(NOTE)).stdout == "configmap/note created\n"
    who = through.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert who.stdout.endswith(":editor"), who.stderr
    assert "forbidden" in through.kubectl("get", "pods").stderr


def test_an_answer_that_lies_after_the_call_took_effect(through: Through) -> None:
    through.proxy.faults.add(Rule(Refuse(500, applied=True), verb="create", resource="configmaps"))
    created = through.kubectl("create", "-f", "-", stdin=json.dumps(NOTE))
    assert "injected by the test bed" in created.stderr
    assert through.kubectl("get", "configmap", "note", "-o", "name").stdout == "configmap/note\n"


def test_too_many_requests_is_tried_again_by_the_client(through: Through) -> None:
    through.proxy.faults.add(Rule(Refuse(429, retry_after_seconds=1), verb="list", resource="configmaps"))
    assert "kube-root-ca.crt" in through.kubectl("get", "configmaps").stdout
    lists = [one.status for one in through.proxy.faults.seen if one.call.resource == "configmaps"]
    assert lists == [429, 200]


def test_a_watch_that_is_cut_ends(through: Through) -> None:
    through.proxy.faults.add(Rule(CutWatch(after_events=0), verb="watch", resource="configmaps"))
    # Uncut it would go on for minutes.
    done = through.kubectl("get", "configmaps", "--watch", "-o", "json")
    assert done.returncode == 0
    assert [one.call.verb for one in through.proxy.faults.hit()] == ["watch"]
