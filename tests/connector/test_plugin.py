"""register() against stand-ins for the two modules of vLLM that it changes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stanch_connector import plugin
from stanch_connector.apiserver import boot
from stanch_connector.engine import layout
from stanch_connector.engine.kit import ATTRIBUTE
from tests.connector import picture

pytestmark = pytest.mark.unit


def make_connector(config: Any, role: Any, kv_cache_config: Any) -> Any:
    return picture.Connector()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """vllm.v1.engine.core with EngineCore, vllm.v1.core.sched.scheduler with Scheduler, and the factory of
    connectors."""

    class Scheduler(picture.Scheduler):
        pass

    class EngineCore:
        def __init__(self) -> None:
            self.scheduler = Scheduler()

    for name in ("vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    core = ModuleType("vllm.v1.engine.core")
    core.EngineCore = EngineCore  # type: ignore[attr-defined]
    sched = ModuleType("vllm.v1.core.sched.scheduler")
    sched.Scheduler = Scheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, core.__name__, core)
    monkeypatch.setitem(sys.modules, sched.__name__, sched)
    transfer = "vllm.distributed.kv_transfer.kv_connector"
    for name in ("vllm.distributed", "vllm.distributed.kv_transfer", transfer):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    factory = ModuleType(f"{transfer}.factory")
    factory.KVConnectorFactory = type("KVConnectorFactory", (), {"create_connector": make_connector})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, factory.__name__, factory)
    monkeypatch.setattr(layout, "ids_are_randomized", lambda: True)
    return SimpleNamespace(EngineCore=EngineCore, Scheduler=Scheduler)


def test_an_engine_core_answers(vllm: SimpleNamespace) -> None:
    plugin.register()
    core = vllm.EngineCore()
    assert hasattr(core.scheduler, ATTRIBUTE)
    core.scheduler.add_request(picture.request("cmpl-a-0-00000000"))
    listed = json.loads(core.stanch_ask("requests"))["requests"]
    assert [one["id"] for one in listed] == ["cmpl-a"]


def test_registering_again_changes_nothing(vllm: SimpleNamespace) -> None:
    plugin.register()
    method, construct = vllm.EngineCore.stanch_ask, vllm.Scheduler.__init__
    plugin.register()
    assert vllm.EngineCore.stanch_ask is method
    assert vllm.Scheduler.__init__ is construct


def test_an_engine_that_was_there_before_answers_too(vllm: SimpleNamespace) -> None:
    core = vllm.EngineCore()
    plugin.register()
    assert json.loads(core.stanch_ask("requests")) == {"requests": []}
    assert json.loads(core.stanch_ask("state"))["errors"] == {}


def test_a_kit_that_cannot_be_made_does_not_hinder_the_scheduler(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("stanch_connector.engine.kit.kit_of", broken)
    plugin.register()
    core = vllm.EngineCore()
    core.scheduler.add_request(picture.request("cmpl-a-0-00000000"))
    assert len(core.scheduler.requests) == 1


def test_a_kit_that_cannot_be_made_is_not_made_by_every_question(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would put its hooks before those of the last one."""

    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("stanch_connector.engine.releaser.Releaser.__init__", broken)
    plugin.register()
    core = vllm.EngineCore()
    for _ in range(sys.getrecursionlimit()):
        assert "error" in json.loads(core.stanch_ask("summary"))
    core.scheduler.add_request(picture.request("cmpl-a-0-00000000"))
    assert len(core.scheduler.requests) == 1


@pytest.mark.parametrize("gone", ["EngineCore", "Scheduler"])
def test_a_vllm_without_them_is_left_alone(vllm: SimpleNamespace, gone: str) -> None:
    for module in ("vllm.v1.engine.core", "vllm.v1.core.sched.scheduler"):
        vars(sys.modules[module]).pop(gone, None)
    construct = vllm.Scheduler.__init__
    plugin.register()
    assert vllm.Scheduler.__init__ is construct
    assert not hasattr(vllm.EngineCore, plugin.UTILITY)


def test_without_vllm_at_all() -> None:
    plugin.register()


def test_a_spawned_worker_imports_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    monkeypatch.setattr(plugin, "install", lambda guard: pytest.fail("a worker has no EngineCore"))
    plugin.register()


def test_importing_the_kit_does_nothing() -> None:
    """No import of vLLM, no thread, no change of the environment."""
    program = (
        "import os, sys, threading; before = dict(os.environ)\n"
        "import stanch_connector.plugin, stanch_connector.apiserver.middleware, stanch_connector.engine.kit\n"
        "assert dict(os.environ) == before; assert threading.active_count() == 1\n"
        "assert not [one for one in sys.modules if one.split('.')[0] in ('vllm', 'torch', 'stanch')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class TestBootId:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(boot.VARIABLE, raising=False)
        importlib.reload(boot)

    def test_stays_the_same_in_a_process(self) -> None:
        assert boot.boot_id() == boot.boot_id()
        assert len(boot.boot_id()) == 16

    def test_the_first_process_never_takes_one_from_its_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(boot.VARIABLE, "of an earlier start")
        assert boot.boot_id() != "of an earlier start"

    def test_children_have_their_parents(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(boot.VARIABLE, "parents")
        monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
        assert boot.boot_id() == "parents"
