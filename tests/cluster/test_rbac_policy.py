"""The admission policy that keeps the operator's account to its own annotations, on the bed's API server and
on the oldest supported one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed import cluster as bed
from tests.bed.cluster import Namespace, wait_for
from tests.bed.oldest import OldestApi
from tests.cluster.caller import Caller
from tests.cluster.installed import ACCOUNT, NAMESPACE, Installed, account_and_rights, idle_pod

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
# By it one image is replaced and the rest of its container stays.
STRATEGIC = "application/strategic-merge-patch+json"

# A patch, and what is wrong with it.
REFUSED: dict[str, Object] = {
    "image": {"spec": {"containers": [{"name": "a", "image": "stanch.test/other"}]}},
    "toleration": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
    "deadline": {"spec": {"activeDeadlineSeconds": 60}},
    "label": {"metadata": {"labels": {"role": "prefill"}}},
    "label removed": {"metadata": {"labels": {"role": None}}},
    "all labels removed": {"metadata": {"labels": None}},
    "foreign annotation": {"metadata": {"annotations": {"example.org/a": "b"}}},
    "foreign annotation changed": {"metadata": {"annotations": {"theirs": "changed"}}},
    "foreign annotation removed": {"metadata": {"annotations": {"theirs": None}}},
    "all annotations removed": {"metadata": {"annotations": None}},
    "ours and a foreign one": {"metadata": {"annotations": {"stanch.dev/incident": "i", "a": "b"}}},
    "lookalike": {"metadata": {"annotations": {"stanch.dev.example/incident": "i"}}},
    "lookalike below": {"metadata": {"annotations": {"a.stanch.dev/incident": "i"}}},
    "finalizer": {"metadata": {"finalizers": ["stanch.dev/none"]}},
    "owner": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]}
    },
}
TAKEN: dict[str, Object] = {
    "set": {"metadata": {"annotations": {"stanch.dev/incident": "i", "stanch.dev/command": "{}"}}},
    "changed": {"metadata": {"annotations": {"stanch.dev/ours": "changed"}}},
    "removed": {"metadata": {"annotations": {"stanch.dev/ours": None}}},
    "nothing": {"metadata": {"annotations": {"theirs": "as it was"}}},
}


@dataclass(frozen=True)
class Patched:
    """try_: whether a patch of the pod is let through under the operator's account, and what is said."""

    try_: Callable[[Object], tuple[bool, str]]


def the_pod() -> Object:
    pod = idle_pod("a", {"role": "decode"})
    pod["metadata"]["annotations"] = {"theirs": "as it was", "stanch.dev/ours": "x"}
    return pod


@pytest.fixture(scope="module", params=["bed", "oldest"])
def patched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patched]:
    if request.param == "bed":
        yield from _on_the_bed(request.getfixturevalue("cluster"), request.getfixturevalue("stanch"))
    else:
        yield from _on_the_oldest(tmp_path_factory.mktemp("oldest"))


def _on_the_bed(cluster: bed.Cluster, stanch: Installed) -> Iterator[Patched]:
    caller = Caller(stanch, stanch.token())
    namespace = Namespace(cluster, f"test-{uuid.uuid4().hex[:8]}")
    namespace.make()
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(the_pod()))
    path = f"/api/v1/namespaces/{namespace.name}/pods/a?dryRun=All"

    def try_(patch: Object) -> tuple[bool, str]:
        code, text = caller.ask("PATCH", path, patch, {"Content-Type": STRATEGIC})
        return code == 200, text

    found = Patched(try_)
    # A new policy is in force after a moment.
    wait_for("the policy", lambda: not found.try_(REFUSED["label"])[0])
    yield found
    namespace.remove()
    caller.close()


def _on_the_oldest(directory: Path) -> Iterator[Patched]:
    """No controller runs there that would make accounts and their tokens."""
    with OldestApi(directory) as api:
        done = api.kubectl("apply", "-f", "-", stdin=account_and_rights())
        assert done.returncode == 0, done.stderr
        wait_for("an account", lambda: api.kubectl("create", "sa", "default").returncode == 0)
        done = api.kubectl("create", "-f", "-", stdin=json.dumps(the_pod()))
        assert done.returncode == 0, done.stderr
        user = [f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}", "--as-group=system:authenticated"]

        def try_(patch: Object) -> tuple[bool, str]:
            words = ["patch", "pod", "a", "--type=strategic", "--dry-run=server", "-p", json.dumps(patch)]
            done = api.kubectl(*words, *user)
            return done.returncode == 0, done.stdout + done.stderr

        found = Patched(try_)
        wait_for("the policy", lambda: not found.try_(REFUSED["label"])[0])
        yield found


@pytest.mark.parametrize("patch", REFUSED.values(), ids=REFUSED)
def test_refuses(patched: Patched, patch: Object) -> None:
    good, said = patched.try_(patch)
    assert not good, said
    if "cannot set an ownerRef on a resource you can't delete" in said:
        return  # Where OwnerReferencesPermissionEnforcement is on, as in the bed, it is asked first.
    assert "ValidatingAdmissionPolicy 'stanch-pods'" in said
    assert "Stanch may set only annotations of stanch.dev on a pod" in said


@pytest.mark.parametrize("patch", TAKEN.values(), ids=TAKEN)
def test_takes(patched: Patched, patch: Object) -> None:
    good, said = patched.try_(patch)
    assert good, said


def test_is_no_matter_of_others(stanch: Installed, namespace: Namespace) -> None:
    namespace.apply(idle_pod("a"))
    patch = json.dumps(REFUSED["label"])
    namespace.kubectl("patch", "pod", "a", "--type=merge", "-p", patch, "--dry-run=server")


def test_the_server_finds_no_fault_with_it(stanch: Installed) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/stanch-pods"
    checked = wait_for(
        "the check of types", lambda: stanch.cluster.api(path).get("status", {}).get("typeChecking")
    )
    assert "expressionWarnings" not in checked
