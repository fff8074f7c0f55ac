"""The operator is killed before and after each of its writes of one repair, and started again.

Whatever the place: no second restart, no pod left cordoned, the incident ends. The proxy before the API
server holds the call (before it took effect, or its answer after it did) while the process is killed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bed.cluster import Cluster, Namespace, wait_for
from tests.bed.faults import Hang, Rule
from tests.bed.proxy import FaultProxy
from tests.cluster.installed import MANIFESTS, NAMESPACE, Installed, installed
from tests.cluster.scenes import PATIENCE_S, Operator, Scene, ending

pytestmark = pytest.mark.cluster

_AT_ONCE = 4


@dataclass(frozen=True)
class Point:
    """The nth write of that kind since the leak was planted. applied: killed after it took effect."""

    verb: str
    resource: str
    nth: int
    applied: bool

    def __str__(self) -> str:
        return f"{'after' if self.applied else 'before'} {self.verb} {self.resource} #{self.nth}"


_WRITES = (
    ("create", "leakincidents", 1),
    *(("update", "leakincidents/status", number) for number in range(1, 9)),
    *(("patch", "pods", number) for number in range(1, 5)),
    *(("update", "leakwatches/status", number) for number in range(1, 3)),
)
POINTS = [Point(*write, applied) for write in _WRITES for applied in (False, True)]


@dataclass(frozen=True)
class Came:
    """hit: whether there was such a write at all."""

    hit: bool
    ending: str
    code: str
    restarts: int
    seconds: float


@pytest.fixture(scope="module")
def matrix(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Point, Future[Came]]]:
    """All points that are asked for, some at a time, each in a namespace of its own."""
    directory = tmp_path_factory.mktemp("matrix")
    asked = [item for item in request.session.items if isinstance(item, pytest.Function)]
    params = [item.callspec.params["point"] for item in asked if item.path == request.path]
    points = [point for point in params if isinstance(point, Point)]
    with installed(cluster, directory) as product, ThreadPoolExecutor(_AT_ONCE) as stage:
        found = {point: stage.submit(_play, product, directory, point) for point in points}
        try:
            yield found
        finally:
            for future in found.values():
                future.cancel()
            _print(found)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_killed(matrix: dict[Point, Future[Came]], point: Point) -> None:
    came = matrix[point].result()
    assert came.hit, "there was no such write"
    assert came.restarts == 1
    assert came.ending == "Resolved"


def _play(product: Installed, directory: Path, point: Point) -> Came:
    namespace = Namespace(product.cluster, f"test-{uuid.uuid4().hex[:8]}")
    namespace.make()
    try:
        with FaultProxy(product.address, trust=product.authority) as proxy:
            return _repair(product, directory, namespace, proxy, point)
    finally:
        namespace.remove()


def _repair(
    product: Installed, directory: Path, namespace: Namespace, proxy: FaultProxy, point: Point
) -> Came:
    _rights(namespace)
    began = time.monotonic()
    operator = Operator(
        product.kubeconfig(directory / f"{namespace.name}.conf", proxy.url),
        directory / f"{namespace.name}.log",
        STANCH_NAMESPACE=namespace.name,
        STANCH_WATCH_NAMESPACES=namespace.name,
    ).start()
    try:
        scene = Scene(namespace, operator)
        scene.engines().watch(remediation={"steps": ["Restart"], "drainSeconds": 5, "cooldownSeconds": 0})
        scene.until_watching()
        proxy.faults.add(Rule(Hang(applied=point.applied), point.verb, point.resource, nth=point.nth))
        scene.leak()

        def there() -> bool:
            return bool(proxy.faults.hit()) or _all_ended(scene)

        wait_for(str(point), there, 2 * PATIENCE_S)
        hit = bool(proxy.faults.hit())
        operator.kill()
        operator.start()
        wait_for("the end of every incident", lambda: _all_ended(scene), 2 * PATIENCE_S)
        wait_for("nothing left on the pod", lambda: scene.ready("d0") and not scene.marks("d0"), PATIENCE_S)
        status = scene.incidents()[-1]["status"]
        return Came(
            hit,
            ending(scene.incidents()[-1]),
            status.get("code", ""),
            scene.restarts("d0"),
            time.monotonic() - began,
        )
    finally:
        if operator.alive:
            operator.kill()


def _all_ended(scene: Scene) -> bool:
    try:
        held = scene.held("d0")
    except OSError:
        return False  # it restarts
    found = scene.incidents()
    return not held and bool(found) and all(one.get("status", {}).get("ending") for one in found)


def _rights(namespace: Namespace) -> None:
    """What the operator has in its own namespace, in this one: each run has a Lease of its own."""
    for name in ("role.yaml", "rolebinding.yaml"):
        text = (MANIFESTS / name).read_text()
        account = "name: stanch\n    namespace: stanch-system"
        kept = text.replace(account, "name: stanch\n    namespace: KEEP")
        namespace.kubectl(
            "apply", "-f", "-", stdin=kept.replace(NAMESPACE, namespace.name).replace("KEEP", NAMESPACE)
        )


def _print(found: dict[Point, Future[Came]]) -> None:
    print("\n| killed | hit | ending | code | restarts | seconds |\n| --- | --- | --- | --- | --- | --- |")
    for point, future in found.items():
        if future.cancelled() or not future.done():
            continue
        error = future.exception()
        if error is not None:
            print(f"| {point} | | {type(error).__name__}: {error} | | | |")
            continue
        came = future.result()
        print(
            f"| {point} | {'yes' if came.hit else 'no'} | {came.ending} | {came.code} | {came.restarts} | "
            f"{came.seconds:.0f} |"
        )
