"""The health scripts for Argo CD in docs/install.md, run by Lua: `obj` in, a table out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit
row = pytest.param

PAGE = Path(__file__).parents[2] / "docs/install.md"
LUA = shutil.which("lua5.4")
WATCH, INCIDENT = "LeakWatch", "LeakIncident"


def script(kind: str) -> str:
    """The block that names the kind in its first line."""
    found = [
        one for one in re.findall(r"```lua\n(.*?)```", PAGE.read_text(), re.DOTALL) if one.startswith("-- ")
    ]
    (mine,) = [one for one in found if f"stanch.dev_{kind}" in one.splitlines()[0]]
    return str(mine)


def lua(value: object) -> str:
    """The value as a Lua literal. Null is an absent key."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"[{json.dumps(key)}] = {lua(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(kind: str, obj: Mapping[str, Any]) -> tuple[str, str]:
    if LUA is None:
        pytest.skip("lua5.4 is not installed: apt-get install lua5.4")
    lines = f"local function health(obj)\n{script(kind)}end\n"
    lines += f"local hs = health({lua(obj)})\nprint(hs.status)\nprint(hs.message)\n"
    done = subprocess.run([LUA, "-"], input=lines, capture_output=True, text=True, check=True)
    status, message = done.stdout.splitlines()
    return status, message


def condition(kind: str, status: str, reason: str, message: str = "said") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def watch(*conditions: dict[str, str], mode: str = "Enforce", generation: int = 1, seen: int = 1) -> Any:
    status = {"observedGeneration": seen, "conditions": list(conditions)}
    return {"metadata": {"generation": generation}, "spec": {"mode": mode}, "status": status}


@pytest.mark.parametrize("kind", [WATCH, "DisaggDeployment"])
@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        row({"metadata": {"generation": 1}, "spec": {}}, "Progressing", id="new"),
        row(watch(), "Progressing", id="no-conditions"),
        row(watch(condition("Ready", "True", "Watching")), "Healthy", id="ready"),
        row(
            watch(condition("Ready", "True", "Watching"), condition("Leaking", "True", "Leaking")),
            "Healthy",
            id="a-leak",
        ),
        row(
            watch(condition("Ready", "False", "AllBlind"), condition("Degraded", "True", "BlindFleet")),
            "Degraded",
            id="blind",
        ),
        row(
            watch(condition("Ready", "False", "RolesNotReady"), condition("Degraded", "False", "AsExpected")),
            "Progressing",
            id="not-ready-yet",
        ),
        row(watch(condition("Ready", "Unknown", "Starting")), "Progressing", id="unknown"),
        row(watch(condition("Ready", "True", "Watching"), generation=2), "Progressing", id="changed"),
        row(watch(condition("Ready", "False", "Disabled"), mode="Disabled"), "Suspended", id="disabled"),
    ],
)
def test_a_watch_and_a_deployment(kind: str, obj: Any, expected: str) -> None:
    status, message = health(kind, obj)
    assert status == expected
    assert message


def incident(*conditions: dict[str, str], **status: Any) -> Any:
    return {"spec": {}, "status": {"conditions": list(conditions), **status}}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        row({"spec": {}}, "Progressing", id="new"),
        row(incident(condition("Ready", "False", "Drain"), detail="draining"), "Progressing", id="open"),
        row(incident(condition("Ready", "True", "Resolved"), ending="Resolved"), "Healthy", id="resolved"),
        row(incident(condition("Ready", "False", "GaveUp"), ending="GaveUp"), "Degraded", id="gave-up"),
        row(
            incident(condition("Ready", "False", "Verify"), condition("Escalated", "True", "VerifyFailed")),
            "Degraded",
            id="a-person-is-wanted",
        ),
    ],
)
def test_an_incident(obj: Any, expected: str) -> None:
    assert health(INCIDENT, obj)[0] == expected
