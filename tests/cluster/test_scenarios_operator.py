"""The operator itself: two at once, replaced or killed half-way, away, and uninstalled in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.cluster import Cluster, Namespace, wait_for
from tests.cluster.installed import CRDS, MANIFESTS, Installed, installed
from tests.cluster.scenes import PATIENCE_S, Operator, Scene, ending, operating, steps

pytestmark = pytest.mark.cluster

RESTART = {"steps": ["Restart"], "drainSeconds": 60, "cooldownSeconds": 0}


@pytest.fixture(scope="module")
def product(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed(cluster, tmp_path_factory.mktemp("installed")) as found:
        yield found


@pytest.fixture
def operator(product: Installed, tmp_path: Path) -> Iterator[Operator]:
    with operating(product, tmp_path) as one:
        yield one


@pytest.fixture
def scene(namespace: Namespace, operator: Operator) -> Scene:
    return Scene(namespace, operator)


def test_of_two_operators_one_acts(scene: Scene, product: Installed, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    config = product.kubeconfig(tmp_path / "other/operator.conf")
    other = Operator(config, tmp_path / "other/operator.log").start()
    try:
        scene.engines().watch(remediation=RESTART).until_watching()
        scene.leak()
        assert ending(scene.ended()) == "Resolved"
        assert scene.restarts("d0") == 1
        assert len(scene.incidents()) == 1
        assert not other.elected()
        # The one that stops gives the Lease up, and the other goes on at once.
        scene.operator.stop()
        wait_for("the other's election", other.elected, PATIENCE_S)
        scene.leak()
        assert ending(scene.ended(1)) == "Resolved"
    finally:
        other.stop()


@pytest.mark.parametrize("how", ["upgraded", "killed"])
def test_an_operator_that_is_replaced_half_way(scene: Scene, how: str) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    healthy = scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    if how == "upgraded":
        assert scene.operator.stop() == 0
    else:
        scene.operator.kill()
    scene.operator.start()
    found = scene.ended()
    assert ending(found) == "Resolved"
    assert healthy.result()["usage"]["completion_tokens"] == 600
    assert scene.restarts("d0") == 1
    assert len(scene.incidents()) == 1
    assert [step for step in steps(found) if step.startswith("Restart")] == ["Restart:Done"]
    wait_for("nothing of ours on the pod", lambda: scene.ready("d0") and not scene.marks("d0"), PATIENCE_S)


def test_pods_need_no_operator(scene: Scene) -> None:
    """Scaled up and restarted while it is away; what stays cordoned serves again within a lease."""
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    scene.operator.kill()
    scene.engines(prefill=(), decode=("d1",))
    scene.namespace.kubectl("exec", "d1", "--", "python3", "-c", "import os; os.kill(1, 15)")
    wait_for("d1's restart", lambda: scene.restarts("d1") == 1, PATIENCE_S)
    scene.namespace.wait_ready("d1")
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0


def test_uninstalled_in_the_middle_of_a_repair(scene: Scene, product: Installed) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    scene.operator.stop()
    files = ("-f", str(MANIFESTS), "-f", str(CRDS))
    try:
        # Nothing hangs: there are no finalizers.
        product.cluster.kubectl("delete", "--timeout=60s", *files)
        wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
        assert scene.restarts("d0") == 0
    finally:
        product.cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
        product.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        product.cluster.kubectl("apply", "-f", str(MANIFESTS))
