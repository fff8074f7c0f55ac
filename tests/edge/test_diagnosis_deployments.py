"""What `stanch doctor` says of a DisaggDeployment."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.edge.diagnosis_deployments import deployment
from stanch.edge.findings import Mark

pytestmark = pytest.mark.unit

Object = dict[str, Any]


def told(conditions: dict[str, str], generation: int = 2) -> Object:
    """conditions: "True Reason" by type; their message is "MESSAGE of TYPE"."""
    found = []
    for kind, said in conditions.items():
        status, _, reason = said.partition(" ")
        found.append({"type": kind, "status": status, "reason": reason, "message": f"MESSAGE of {kind}"})
    return {
        "metadata": {"namespace": "ns", "name": "shop", "generation": generation},
        "status": {"observedGeneration": 2, "conditions": found},
    }


WELL = {"Ready": "True Serving", "Degraded": "False AsExpected", "Outdated": "False UpToDate"}


@pytest.mark.parametrize(
    ("raw", "mark", "says", "todo"),
    [
        (told(WELL), Mark.OK, "MESSAGE of Ready", ""),
        (told(WELL, 3), Mark.WARN, "no operator has looked at it", "whether one is active"),
        (
            {"metadata": {"namespace": "ns", "name": "shop", "generation": 1}},
            Mark.WARN,
            "no operator has looked",
            "wait",
        ),
        (
            told({**WELL, "Ready": "False Invalid", "Degraded": "True Invalid"}),
            Mark.FAIL,
            "Invalid: MESSAGE of Degraded",
            "change the field",
        ),
        (
            told({**WELL, "Ready": "False RolesNotReady"}),
            Mark.WARN,
            "RolesNotReady: MESSAGE of Ready",
            "wait",
        ),
        (
            told({**WELL, "Outdated": "True UpdateHeld"}),
            Mark.WARN,
            "UpdateHeld: MESSAGE",
            "stanch.dev/update",
        ),
    ],
    ids=["well", "edited since", "never seen", "wrong", "not ready", "outdated"],
)
def test_finding(raw: Object, mark: Mark, says: str, todo: str) -> None:
    found = deployment(raw)
    assert (found.about, found.check, found.mark) == ("ns/shop", "deployment", mark)
    assert says in found.says
    assert todo in found.todo
    assert bool(found.todo) is (mark is not Mark.OK)
