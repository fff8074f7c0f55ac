"""Incidents as the planner leaves them, for tests of what is told about them."""

from __future__ import annotations

from typing import Any

from stanch.core.history import Evidence, Incident, StepName, StepOutcome, Stuck
from stanch.core.verdict import Signature

T = 1_800_000_000.0


def stuck(name: str, age: float = 600.0, **more: Any) -> Stuck:
    return Stuck(f"cmpl-{name}", age, 10, True, True, **more)


def made(**more: Any) -> Incident:
    """One that the watchdog has just found, before it was confirmed."""
    found = {
        "name": "decode-0-0badcafe-1",
        "pod_name": "decode-0",
        "pod_uid": "uid-0",
        "created": T,
        "unit": "shop/decode-0",
        "container_id": "c1",
        "engines": ("decode-0",),
        "evidence": Evidence(Signature.HELD_IDLE, 0.74, 75.0, T, "the engine kit lists them"),
    }
    return Incident(**{**found, **more}).begin(StepName.CONFIRM, T)


def done(incident: Incident, detail: str = "", seconds: float = 2.0) -> Incident:
    """Its step under way has ended well."""
    assert incident.current is not None
    return incident.finish(StepOutcome.DONE, detail, incident.current.start + seconds)
