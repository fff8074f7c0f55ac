"""The cordon lease at a real engine: readiness fails while the beat changes, and for no other reason."""

from __future__ import annotations

import time

import pytest

from stanch_connector import contract
from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.chaos_bed import Annotations, Fitted, Flow, start
from tests.engine.kit import MIDDLEWARE, ask, kit_path

pytestmark = pytest.mark.engine
VERSION = "0.29.0"
# Longer than a busy machine lets a beat, or a look at it, wait.
LEASE_S = 6.0
# The kubelet's default. The deadline of what has to show within one probe period.
PROBE_PERIOD_S = 10.0


def cordon(incident: str, beat: int, lease_s: float = LEASE_S) -> dict[str, dict[str, object]]:
    return {contract.ANNOTATION_CORDON: {"incident": incident, "beat": beat, "leaseSeconds": lease_s}}


@pytest.fixture(scope="module")
def volume(bed: Bed) -> Annotations:
    """The pod's annotations, with a beat from before the engine's start."""
    made = Annotations(bed.directory / "podinfo")
    made.write(cordon("before", 41))
    return made


@pytest.fixture(scope="module")
def engine(bed: Bed, volume: Annotations) -> Engine:
    spec = Spec("decode", extra_args=MIDDLEWARE, python_path=kit_path(bed.directory / "kit"))
    one = Fitted(bed, spec, {contract.ENV_ANNOTATIONS: str(volume.path)})
    start(one)
    return one


def is_ready(engine: Engine) -> bool:
    return ask(engine, "ready").status == 200


def until_cordoned(engine: Engine) -> float:
    return until(lambda: not is_ready(engine), "a changed beat is seen", PROBE_PERIOD_S)


def test_a_beat_from_before_the_start_never_counts(engine: Engine, volume: Annotations) -> None:
    began = time.monotonic()
    while time.monotonic() - began < LEASE_S:
        assert is_ready(engine)
        assert ask(engine, "state").body["cordoned"] is False
    # It is read, and only its age is not known: the next beat counts.
    volume.write(cordon("before", 42))
    until_cordoned(engine)
    assert ask(engine, "state").body["cordonIncident"] == "before"
    volume.write({})
    until(lambda: is_ready(engine), "the annotation is gone")


def test_it_holds_while_the_beat_changes_and_ends_by_itself(
    engine: Engine, volume: Annotations, capsys: pytest.CaptureFixture[str]
) -> None:
    with Flow(engine.url) as flow:
        volume.write(cordon("kv-17", 1))
        seen_after = until_cordoned(engine)
        answered = len(flow.statuses)
        beat, began = 1, time.monotonic()
        # Longer than two leases.
        while time.monotonic() - began < 2.5 * LEASE_S:
            beat += 1
            volume.write(cordon("kv-17", beat))
            until(lambda: ask(engine, "state").body["cordoned"], "cordoned")
            ready = ask(engine, "ready")
            assert (ready.status, ready.body["ready"]) == (503, False)
            assert ready.body["reason"] == "cordoned for kv-17"
            time.sleep(LEASE_S / 6)
        state = ask(engine, "state").body
        assert (state["ready"], state["cordoned"], state["cordonIncident"]) == (False, True, "kv-17")
        assert state["draining"] is False
        # A cordon is for the router: what comes all the same is served, and vLLM's own health says nothing.
        assert len(flow.statuses) > answered
        assert engine.healthy
        ended_after = until(lambda: is_ready(engine), "the beat has stopped", LEASE_S + PROBE_PERIOD_S)
        # The file says what it said.
        assert f'beat\\": {beat},' in volume.path.read_text()
        more = len(flow.statuses)
        until(lambda: len(flow.statuses) > more, "traffic goes on")
    assert set(flow.statuses) == {200}
    assert flow.broken == []
    with capsys.disabled():
        print(
            f"\ncordon: not ready {seen_after:.1f} s after the beat, ready {ended_after:.1f} s after the last"
        )


def test_the_same_beat_does_not_start_it_again(engine: Engine, volume: Annotations) -> None:
    """Nor does a text that is no cordon, a volume that is gone, or another annotation."""
    volume.write(cordon("kv-18", 7))
    until_cordoned(engine)
    until(lambda: is_ready(engine), "its lease has ended")
    volume.write({**cordon("kv-18", 7), "other.example/x": {"a": 1}})
    broken: dict[str, dict[str, object]] = {
        contract.ANNOTATION_CORDON: {"incident": "kv-18", "beat": "eight"}
    }
    began = time.monotonic()
    while time.monotonic() - began < 2:
        assert is_ready(engine)
    volume.write(broken)
    began = time.monotonic()
    while time.monotonic() - began < 2:
        assert is_ready(engine)
    state = ask(engine, "state").body
    assert (state["errors"], state["disabled"]) == ({}, None)


def test_a_volume_that_is_gone_lets_it_run_out(engine: Engine, volume: Annotations) -> None:
    volume.write(cordon("kv-19", 1))
    until_cordoned(engine)
    volume.path.unlink()
    assert not is_ready(engine), "no reading is no news"
    until(lambda: is_ready(engine), "its lease has ended", LEASE_S + PROBE_PERIOD_S)
    assert ask(engine, "state").body["errors"] == {}
