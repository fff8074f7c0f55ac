"""List of pods and kit after a restart: whichever lags, the pod is not healthy until both are of one run."""

from __future__ import annotations

import pytest

from stanch.edge.kit_answers import Facts
from stanch.edge.runs import Runs
from stanch.edge.units import Heard, select
from tests.edge.units_world import pod, status, watch

pytestmark = pytest.mark.unit


class World:
    """A pod of one engine, looked at once a second; whether it counts as healthy, from each look."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.now = 1000.0

    def look(self, container: str | None, boot: str | None, seconds: float = 1.0) -> bool | None:
        self.now += seconds
        raw = pod("d0")
        status(raw)["containerID"] = container
        if container is None:
            status(raw)["state"] = {"terminated": {}}
        heard = Heard(healthy=True, kit=None if boot is None else Facts(boot))
        return self.runs.in_step(select(watch(), [raw], {}), {"d0": heard}, self.now)["d0"].healthy


def test_a_kit_that_shows_the_next_run_first_is_waited_for() -> None:
    world = World()
    assert world.look("run-1", "one")
    assert world.look("run-1", "two") is False
    assert world.look("run-2", "two")


def test_what_was_said_before_the_restart_is_not_of_the_new_container() -> None:
    """Facts are kept for a while when nobody answers; the new process is believed at its first word."""
    world = World()
    assert world.look("run-1", "one")
    assert world.look(None, "one") is False
    assert world.look("run-2", "one") is False
    assert world.look("run-2", None)  # for others to judge: /health is asked anew
    assert world.look("run-2", "two")
    assert world.look("run-2", "two")


def test_a_process_that_restarts_inside_its_container_is_believed_after_half_a_minute() -> None:
    world = World()
    assert world.look("run-1", "one")
    assert world.look("run-1", "two") is False
    assert world.look("run-1", "two", seconds=31)
    assert world.look("run-1", "two")
    # The list catches up after all.
    assert world.look("run-2", "two") is False
    assert world.look("run-2", "two", seconds=31)


def test_a_pod_made_anew_under_the_same_name_has_no_past() -> None:
    world = World()
    assert world.look("run-1", "one")
    assert world.runs.in_step(select(watch(), [], {}), {}, world.now) == {}
    assert world.look("run-2", "one")
