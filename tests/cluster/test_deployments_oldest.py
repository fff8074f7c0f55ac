"""DisaggDeployments on the oldest supported API server: that it applies as the newest does, and keeps the
operator's account to what a DisaggDeployment controls. No controller runs there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.cluster import Cluster, Conflict, Invalid
from tests.bed.cluster import wait_for
from tests.bed.oldest import OldestApi
from tests.cluster.disagg import Rounds, disagg
from tests.cluster.installed import ACCOUNT, CRDS, NAMESPACE, Speaker, account_and_rights

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
LABELS = {"app.kubernetes.io/managed-by": "stanch", "stanch.dev/deployment": "shop"}


def test_applies_and_is_kept_to_its_own(tmp_path: Path) -> None:
    with OldestApi(tmp_path) as api:
        for arguments, text in (
            (("apply", "--server-side", "-f", str(CRDS)), None),
            (("apply", "-f", "-"), account_and_rights()),
            (("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS)), None),
            (("apply", "-f", "-"), json.dumps(disagg(decode=2))),
        ):
            done = api.kubectl(*arguments, stdin=text)
            assert done.returncode == 0, done.stderr
        rounds_on_it(api)
        policy_on_it(api)


def rounds_on_it(api: OldestApi) -> None:
    async def scene(cluster: Cluster) -> None:
        run = Rounds(cluster, "default")
        await run(2)
        whole = found(api, "deployment", "shop-decode")
        body = {key: whole[key] for key in ("apiVersion", "kind", "spec")}
        meta = {"name": "shop-decode", "namespace": "default"}
        with pytest.raises(Conflict):
            await cluster.making.apply({**body, "metadata": {**meta, "uid": "another"}}, dry_run=True)
        wrong = {**body["spec"], "template": {"spec": {"hostNetwerk": True}}}
        with pytest.raises(Invalid, match="hostNetwerk"):
            await cluster.making.apply({**body, "metadata": meta, "spec": wrong}, dry_run=True)
        remove = [{"op": "remove", "path": "/spec/roles/1/replicas"}]
        done = api.kubectl("patch", "disaggdeployment", "shop", "--type=json", "-p", json.dumps(remove))
        assert done.returncode == 0, done.stderr
        await run()

    Speaker(str(api.kubeconfig)).run(scene)
    assert found(api, "deployment", "shop-decode")["spec"]["replicas"] == 2
    conditions = found(api, "disaggdeployment", "shop")["status"]["conditions"]
    assert [(one["type"], one["status"]) for one in conditions] == [
        ("Ready", "False"),
        ("Progressing", "True"),
        ("Degraded", "False"),
        ("Outdated", "False"),
    ]


def policy_on_it(api: OldestApi) -> None:
    user = [f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}", "--as-group=system:authenticated"]

    def refused(body: Object) -> str:
        done = api.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", *user,
            stdin=json.dumps(body),
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    service = found(api, "service", "shop-decode")
    owner = service["metadata"]["ownerReferences"]
    ours = {**service, "metadata": {"name": "shop-decode", "labels": LABELS, "ownerReferences": owner}}
    alone = {**ours, "metadata": {"name": "new", "labels": LABELS}}
    for one in (ours, alone):
        one["spec"] = {"ports": service["spec"]["ports"]}
    wait_for("the policy", lambda: refused(alone))
    assert "only what a DisaggDeployment controls" in refused(alone)
    assert not refused(ours), refused(ours)
    theirs = {**ours, "metadata": {**ours["metadata"], "name": "kubernetes"}}
    assert "may change and delete only" in refused(theirs)


def found(api: OldestApi, kind: str, name: str) -> Object:
    done = api.kubectl("get", kind, name, "-o", "json")
    assert done.returncode == 0, done.stderr
    one: Object = json.loads(done.stdout)
    return one
