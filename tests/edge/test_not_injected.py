"""Pods whose label asks for the kit and that have none: named in a condition of their watch, with the
reason."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.core.history import Ledger
from stanch.core.plan_conditions import Said, of_watch
from stanch.core.plan_limits import Limits
from stanch.core.plan_types import Plan
from stanch.edge.render.kit import KitOptions, inject
from tests.edge.units_world import look, only, pod

pytestmark = pytest.mark.unit


def asking(name: str, kit: bool = False, **annotations: str) -> dict[str, Any]:
    raw = pod(name, kit=kit)
    raw["metadata"]["labels"]["stanch.dev/inject"] = "enabled"
    raw["metadata"]["annotations"] |= {f"stanch.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}
    return raw


def condition(*pods: dict[str, Any]) -> Said:
    said = of_watch(look(list(pods))[1], (), Plan(()), (), Ledger(), Limits())
    return next(one for one in said if one.type == "NotInjected")


def test_nobody_asks() -> None:
    assert condition(pod("d0", kit=False), pod("d1")) == Said("NotInjected", False, "NoneLeftOut")


def test_no_webhook_saw_them() -> None:
    found = condition(asking("d1"), asking("d0"), pod("d2", kit=False))
    assert (found.true, found.reason) == (True, "KitMissing")
    assert found.message.startswith("d0, d1: no webhook of Stanch was asked when it was made")
    assert "to have it made anew" in found.message


def test_the_webhook_s_own_reason_comes_first() -> None:
    found = condition(asking("d0", not_injected="container vllm: its script"), asking("d1"))
    assert "d0: container vllm: its script; d1: no webhook" in found.message


def test_many_are_counted() -> None:
    found = condition(*(asking(f"d{n}") for n in range(7)))
    assert found.message.startswith("d0, d1, d2 and 4 more: ")


def test_those_that_have_it() -> None:
    by_hand = asking("d0", kit=True)
    injected = asking("d1")
    injected["spec"]["containers"][0]["command"] = ["vllm", "serve", "m"]
    injected = inject(injected, KitOptions("i")).template
    assert only([by_hand]).lead.not_injected == ""
    assert only([injected]).lead.not_injected == ""
    # Also where the engine's own readiness stays, and so a cordon has no effect.
    injected["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] = "/own"
    assert only([injected]).lead.not_injected == ""
