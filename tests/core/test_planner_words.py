"""Words and numbers that stand in two rooms, because the walls between them allow no import."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.core.plan_limits import CORDON_LEASE_SECONDS, CORDON_RENEW_SECONDS
from stanch.core.plan_open import incident_name
from stanch.core.plan_types import Verb
from stanch_connector import contract

pytestmark = pytest.mark.unit


def test_the_cordon_is_the_contracts() -> None:
    assert CORDON_LEASE_SECONDS == contract.CORDON_LEASE_SECONDS
    assert CORDON_RENEW_SECONDS == contract.CORDON_RENEW_SECONDS


def test_what_is_commanded_is_what_the_kit_obeys() -> None:
    assert {Verb.RELEASE.value, Verb.DRAIN.value, Verb.RESTART.value} <= set(get_args(contract.Verb))


def test_the_lock_is_in_the_annotations_of_the_group() -> None:
    group = contract.ANNOTATION_CORDON.rpartition("/")[0]
    assert ANNOTATION_INCIDENT.rpartition("/")[0] == group


@pytest.mark.parametrize("module", ["stanch.core.planner", "stanch.core.plan_would"])
def test_the_planner_needs_nothing_but_the_standard_library(module: str) -> None:
    unwanted = ("asyncio", "socket", "aiohttp", "pydantic", "datetime")
    code = f"import sys, {module}; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_incidents_name_is_a_dns_label_that_differs_by_run_and_episode() -> None:
    names = [
        incident_name("decode-" + "x" * 80, "uid", "containerd://1", 1),
        incident_name("decode-" + "x" * 80, "uid", "containerd://1", 2),
        incident_name("decode-" + "x" * 80, "uid", "containerd://2", 1),
        incident_name("decode-" + "x" * 80, "uid-2", "containerd://1", 1),
        incident_name("a.b-", "uid", None, 1),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and name[0].isalnum() and name[-1].isalnum() for name in names)
    assert names[0] == incident_name("decode-" + "x" * 80, "uid", "containerd://1", 1)
