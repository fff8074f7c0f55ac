"""The operator is killed at each of its effects, and the API server is in trouble at each kind of call: no
double restart, no pod left cordoned, and the incident ends. All of it: `make crash-full`; what came of it:
docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed.cluster import Cluster
from tests.cluster.crash_matrix import (
    CALLS,
    LIE,
    POINTS,
    Playing,
    Run,
    cell,
    crashes,
    faults,
    for_ci,
    playing,
    tables,
    undisturbed,
    unknown,
)
from tests.cluster.installed import Installed

pytestmark = pytest.mark.cluster

RUNS = for_ci()


@pytest.fixture(scope="module")
def played(
    cluster: Cluster,
    stanch: Installed,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Playing]:
    """Those runs that a test was chosen for; at the end the table of their outcomes."""
    wanted = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = {spec.params["run"] for spec in wanted if spec is not None and "run" in spec.params}
    runs = [run for run in RUNS if run in chosen]
    with playing(cluster, stanch, tmp_path_factory.mktemp("crash"), runs) as found:
        yield found
        cells = {
            name: "FAILED" if one.cancelled() or one.exception() is not None else cell(one.result())
            for name, one in found.futures.items()
            if one.done()
        }
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(tables(runs, cells))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_holds(played: Playing, run: Run) -> None:
    """What is asserted of each: tests/cluster/crash.py."""
    outcome = played.result(run)
    if run in undisturbed():
        # A new effect must be given a place in the matrix.
        assert not unknown(outcome.met)


def test_all_of_it_is_more() -> None:
    """The operator dies before and after every point, and is started again and is not; every fault meets
    every kind of call."""
    assert len(crashes()) == 4 * len(POINTS)
    assert len({run.name for run in [*undisturbed(), *crashes(), *faults()]}) == 3 + len(crashes()) + len(
        faults()
    )
    assert {run.column for run in faults()} == set(CALLS)
    assert all(run.row not in LIE or run.column not in ("list", "watch") for run in faults())


def test_an_effect_without_a_place_is_found() -> None:
    assert unknown(["pod: cordon", "incident: Confirm 3", "engine: list at Drain 2", "secrets: create"]) == {
        "secrets: create"
    }
