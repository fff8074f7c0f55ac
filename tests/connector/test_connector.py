"""The connector class over small stock classes: modes, refusal, and that importing has no effect."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stanch_connector import connector
from stanch_connector.compat import Nixl
from tests.connector.test_connector_choice import KNOWN, Scheduler, Worker

pytestmark = pytest.mark.unit


class Stock:
    """A facade as vLLM's, which makes one side per process."""

    def __init__(self, vllm_config: Any, role: str, kv_cache_config: Any) -> None:
        self.connector_scheduler = Scheduler() if role == "scheduler" else None
        self.connector_worker = Worker() if role == "worker" else None


NIXL = dataclasses.replace(KNOWN, connector=Stock)
UNKNOWN = dataclasses.replace(NIXL, version="0.99.0")


def config(mode: object = None) -> Any:
    extra = {} if mode is None else {"stanch_connector_patch": mode}
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))


def made(nixl: Nixl, role: str, mode: object = None) -> Any:
    return connector.build(nixl)(config(mode), role, None)


@pytest.mark.parametrize("mode", [None, "Auto", "Always"])
def test_both_sides_get_the_fix(mode: str | None) -> None:
    scheduler, worker = made(NIXL, "scheduler", mode), made(NIXL, "worker", mode)
    assert (scheduler.stanch_fix, worker.stanch_fix) == ("active", "active")
    assert isinstance(scheduler.connector_scheduler, Scheduler)
    assert type(scheduler.connector_scheduler) is not Scheduler
    assert isinstance(worker.connector_worker, Worker)
    assert type(worker.connector_worker) is not Worker


def test_never_is_off() -> None:
    for role in ("scheduler", "worker"):
        found = made(NIXL, role, "Never")
        assert found.stanch_fix == "off"
        assert type(found.connector_scheduler or found.connector_worker) in (Scheduler, Worker)


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_an_unknown_version_is_stock_and_says_so_once(role: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = made(UNKNOWN, role)
    assert found.stanch_fix == "unpatched"
    assert "0.99.0" in found.stanch_fix_reason
    assert type(found.connector_scheduler or found.connector_worker) in (Scheduler, Worker)
    said = [one for one in caplog.records if "unpatched" in one.getMessage()]
    assert [one.levelname for one in said] == ["WARNING"]


def test_always_refuses_with_a_sentence_before_anything_is_made() -> None:
    with pytest.raises(
        connector.ConnectorRefusedError, match=r"Always and .* cannot be put in: .*0\.99\.0.*\.$"
    ):
        made(UNKNOWN, "worker", "Always")


def test_a_side_that_is_not_as_expected_stays_stock() -> None:
    class Renamed(Stock):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if self.connector_worker is not None:
                del self.connector_worker._failed_recv_reqs

    odd = dataclasses.replace(NIXL, connector=Renamed)
    found = made(odd, "worker")
    assert found.stanch_fix == "unpatched"
    assert type(found.connector_worker) is Worker
    with pytest.raises(connector.ConnectorRefusedError):
        made(odd, "worker", "Always")


def test_a_config_that_cannot_be_read_is_auto() -> None:
    assert connector.build(NIXL)(None, "worker", None).stanch_fix == "active"


def test_the_class_is_what_vllm_looks_for() -> None:
    cls = connector.build(NIXL)
    # The factory asks for this argument; MultiConnector looks the name up in vLLM's own registry.
    assert "kv_cache_config" in inspect.signature(cls).parameters
    assert cls.__name__ == "Stock"
    assert issubclass(cls, Stock)
    assert (cls.stanch_fix, connector.build(UNKNOWN).stanch_fix) == ("active", "unpatched")


def test_importing_has_no_effect() -> None:
    code = (
        "import sys, threading; before = set(sys.modules); import stanch_connector.connector as c; "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('vllm', 'torch', 'zmq', 'stanch')]; "
        "assert threading.active_count() == 1; assert not hasattr(c, 'Other'); "
        "assert 'StanchNixlConnector' not in vars(c)"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=30)
