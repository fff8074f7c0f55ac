"""The operator itself: two at once, replaced or killed half-way, away, and uninstalled in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bed import manifests
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import CRDS, Installed, account_and_rights, rights_in
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import BUSY_TOKENS, PATIENCE_S, RESTART, Scene, outcome, steps
from tests.cluster.together import Operated, Played, scenario

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def operated(stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Operated:
    """Each scenario has an operator, and a Lease, of its own."""

    @contextmanager
    def own(namespace: Namespace) -> Iterator[Operator]:
        namespace.apply(*rights_in(namespace.name))
        only = dict.fromkeys(("STANCH_NAMESPACE", "STANCH_WATCH_NAMESPACES"), namespace.name)
        with operating(stanch, tmp_path_factory.mktemp("operator"), **only) as operator:
            yield operator

    return own


@scenario
def test_of_two_operators_one_acts(scene: Scene) -> None:
    with scene.operator.twin() as other:
        other.start()
        scene.engines().watch(remediation=RESTART).until_watching()
        scene.leak()
        assert outcome(scene.ended()) == ("Resolved", "Restarted")
        scene.let_go("d0")
        assert scene.restarts("d0") == 1
        assert len(scene.incidents()) == 1
        assert not other.elected()


@scenario
def test_an_operator_that_is_upgraded_half_way(scene: Scene) -> None:
    """As a Deployment does it: the new one is there before the old one is told to go. Nothing is done twice,
    and the cordon holds all through it."""
    scene.engines().watch(remediation=RESTART).until_watching()
    (healthy,) = scene.draining("d0")
    with scene.operator.twin() as new:
        new.start()
        wait_for(
            "the new one standing by",
            lambda: any(line["event"] == "standing-by" for line in new.lines()),
            PATIENCE_S,
        )
        assert not new.elected()
        assert scene.operator.stop() == 0
        wait_for("the new one's election", new.elected, PATIENCE_S)
        found = scene.ended()
        scene.let_go("d0")
    assert healthy.result()["usage"]["completion_tokens"] == BUSY_TOKENS
    assert outcome(found) == ("Resolved", "Restarted")
    assert steps(found) == [
        f"{name}:Done"
        for name in (
            *("Observe", "Confirm", "Cordon", "Drain", "Capture"),
            *("Confirm", "Restart", "Verify", "Uncordon"),
        )
    ]
    assert scene.restarts("d0") == 1
    assert len(scene.incidents()) == 1


@scenario
def test_an_operator_that_is_killed_half_way(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    (healthy,) = scene.draining("d0")
    scene.operator.kill()
    scene.operator.start()
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Restarted")
    assert healthy.result()["usage"]["completion_tokens"] == BUSY_TOKENS
    scene.let_go("d0")
    assert scene.restarts("d0") == 1
    assert len(scene.incidents()) == 1
    assert [step for step in steps(found) if step.startswith("Restart")] == ["Restart:Done"]


@scenario
def test_pods_need_no_operator(scene: Scene) -> None:
    """With no replica of it: pods of a scale-up become ready; of two cordoned ones one serves again within a
    lease, and one whose container restarts does at once, though the annotation is still there."""
    scene.engines(decode=("d0", "d1"))
    scene.namespace.apply(manifests.deployment("more", "decode", 1))
    scene.deployed("more", 1)
    scene.watch(remediation={**RESTART, "maxUnavailable": 2}).until_watching()
    scene.draining("d0", "d1")
    scene.operator.kill()
    marks = {name: scene.marks(name) for name in ("d0", "d1")}
    assert all("stanch.dev/cordon" in one for one in marks.values())
    scene.namespace.kubectl("exec", "d1", "--", "python3", "-c", "import os; os.kill(1, 15)")
    scene.namespace.kubectl("scale", "deployment", "more", "--replicas=3")
    scene.deployed("more", 3)
    for name, restarts in (("d0", 0), ("d1", 1)):
        wait_for(f"{name} ready", lambda name=name: scene.ready(name), PATIENCE_S)  # type: ignore[misc]
        assert scene.restarts(name) == restarts
        assert scene.marks(name) == marks[name]
    # The next one ends what was begun: d1 has another process, d0 still leaks.
    scene.operator.start()
    ends = {one["spec"]["podRef"]["name"]: one for one in (scene.ended(0), scene.ended(1))}
    assert outcome(ends["d1"]) == ("Recovered", "Restarted")
    assert outcome(ends["d0"]) == ("Resolved", "Restarted")
    for name in ("d0", "d1"):
        scene.let_go(name)
        assert scene.restarts(name) == 1


@pytest.fixture
def alone(stanch: Installed, namespace: Namespace, tmp_path: Path) -> Iterator[Scene]:
    """Before an operator as it is installed, and nothing else."""
    with operating(stanch, tmp_path) as operator:
        yield Scene(namespace, operator)


def test_uninstalled_in_the_middle_of_a_repair(played: Played, alone: Scene, stanch: Installed) -> None:
    # It takes away what the others need.
    played.wait()
    alone.engines().watch(remediation=RESTART).until_watching()
    alone.draining("d0")
    alone.operator.stop()
    try:
        # Nothing hangs: there are no finalizers.
        stanch.cluster.kubectl("delete", "--timeout=60s", "-f", "-", stdin=account_and_rights())
        stanch.cluster.kubectl("delete", "--timeout=60s", "-f", str(CRDS))
        wait_for("d0 ready again", lambda: alone.ready("d0"), PATIENCE_S)
        assert alone.restarts("d0") == 0
    finally:
        stanch.cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
        stanch.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        stanch.cluster.kubectl("apply", "-f", "-", stdin=account_and_rights())
