"""What compat makes of a vLLM, with small classes of the layout that the fix knows."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest

from stanch_connector import compat
from stanch_connector.compat import Nixl, choose

pytestmark = pytest.mark.unit


@dataclasses.dataclass
class ReqMeta:
    local_block_ids: tuple[list[int], ...]
    local_physical_block_ids: tuple[list[int], ...]
    remote: object = None


class Scheduler:
    def __init__(self) -> None:
        self._reqs_need_recv: dict[str, object] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._reqs_need_recv[request.request_id] = (request, blocks)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        scheduler_output.add_new_req_to_recv(self._reqs_need_recv)


class Worker:
    def __init__(self) -> None:
        self._recving_transfers: dict[str, list[int]] = {}
        self._recving_metadata: dict[str, ReqMeta] = {}
        self._failed_recv_reqs: set[str] = set()

    def start_load_kv(self, metadata: Any) -> None:
        for req_id, meta in metadata.reqs_to_recv.items():
            self._recving_metadata[req_id] = meta
            self._read_blocks_for_req(req_id, meta)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        self._read_blocks(meta.local_physical_block_ids)

    def _read_blocks(self, ids: Any) -> None: ...

    def get_finished(self) -> tuple[set[str], set[str]]:
        done = set(self._recving_transfers) | self._failed_recv_reqs
        for one in done:
            self._recving_metadata.pop(one)
        return set(), done


class Connector:
    """Stands for the stock facade."""


KNOWN = Nixl("0.29.0", Connector, Scheduler, Worker, ReqMeta)


def without(owner: type, name: str) -> type:
    """The class with a method gone."""
    return type(owner.__name__, (), {k: v for k, v in vars(owner).items() if k not in (name, "__dict__")})


def instead(owner: type, name: str, method: Callable[..., Any]) -> type:
    """The class with a method replaced."""
    return type(owner.__name__, (owner,), {name: method})


@pytest.mark.parametrize(
    "version", ["0.20.0", "0.20.2", "0.25.1", "0.29.0", "0.29.0+cpu", "0.29.1rc1", "0.29.0.dev3+g12"]
)
def test_the_layout_with_the_defect_is_fixed(version: str) -> None:
    assert choose(dataclasses.replace(KNOWN, version=version)).fix == "active"


def test_vllms_own_fix_makes_ours_needless() -> None:
    @dataclasses.dataclass
    class Fixed(ReqMeta):
        awaiting_kvs: bool = False

    for version in ("0.30.0", "0.32.0", "0.29.0+backport", "unknown"):
        assert choose(dataclasses.replace(KNOWN, version=version, req_meta=Fixed)).fix == "not-needed"


@pytest.mark.parametrize("version", ["0.19.1", "0.30.0", "0.129.0", "1.29.0", "unknown", "", "dev"])
def test_the_layout_alone_is_not_enough(version: str) -> None:
    choice = choose(dataclasses.replace(KNOWN, version=version))
    assert choice.fix == "unpatched"
    assert "not a version" in choice.reason


def more(self: Any, request: Any, blocks: Any, num_external_tokens: int, extra: int) -> None:
    self._reqs_need_recv = {}


def elsewhere(self: Any) -> tuple[set[str], set[str]]:
    return self.board.finished()  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Frozen:
    local_block_ids: tuple[list[int], ...]
    local_physical_block_ids: tuple[list[int], ...]
    remote: object = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("local_block_ids", "local_physical_block_ids", "remote")
    local_block_ids: tuple[list[int], ...]
    local_physical_block_ids: tuple[list[int], ...]
    remote: object


class Odd:
    """Nothing about it can be looked at."""

    @property
    def __mro__(self) -> Any:
        raise ValueError("odd")


OTHER_LAYOUTS = {
    "no scheduler": {"scheduler": None},
    "no worker": {"worker": None},
    "no metadata": {"req_meta": None},
    "odd metadata": {"req_meta": Odd()},
    "a scheduler that is no class": {"scheduler": Scheduler()},
    "frozen metadata": {"req_meta": Frozen},
    "slotted metadata": {"req_meta": Slotted},
    "another argument": {"scheduler": instead(Scheduler, "update_state_after_alloc", more)},
    "kept elsewhere": {"worker": instead(Worker, "get_finished", elsewhere)},
    **{f"no {name}": {"scheduler": without(Scheduler, name)} for name in compat.SCHEDULER_SEAMS},
    **{f"no {name}": {"worker": without(Worker, name)} for name in compat.WORKER_SEAMS},
}


@pytest.mark.parametrize("parts", OTHER_LAYOUTS.values(), ids=OTHER_LAYOUTS)
def test_another_layout_stays_stock(parts: dict[str, Any]) -> None:
    choice = choose(dataclasses.replace(KNOWN, **parts))
    assert choice.fix == "unpatched"
    assert "laid out differently" in choice.reason


def test_a_side_is_patched_only_if_it_is_what_was_looked_at() -> None:
    assert compat.side_misfit(Worker(), Worker, compat.WORKER_ATTRIBUTES) is None
    assert compat.side_misfit(type("Other", (Worker,), {})(), Worker, ()) == "it is a Other, not a Worker"
    bare = Worker()
    del bare._failed_recv_reqs
    assert compat.side_misfit(bare, Worker, compat.WORKER_ATTRIBUTES) == "it has no _failed_recv_reqs"


MODES: list[tuple[object, str]] = [
    ("Auto", "Auto"),
    ("Always", "Always"),
    ("always", "Always"),
    (" Never ", "Never"),
    (None, "Auto"),
    ("", "Auto"),
    ("off", "Auto"),
    (False, "Auto"),
    ([], "Auto"),
]


@pytest.mark.parametrize(("value", "mode"), MODES)
def test_patch_mode(value: object, mode: str) -> None:
    assert compat.patch_mode(value) == mode


def test_a_vllm_without_nixl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = types.SimpleNamespace(__name__="nixl", __version__="0.50.0")
    monkeypatch.setattr("importlib.import_module", lambda name: empty)
    with pytest.raises(ImportError, match="has no NIXL connector"):
        compat.load()


def test_a_vllm_from_before_the_package_is_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.19 and earlier: one module."""

    def find(name: str) -> Any:
        if name == "vllm":
            return types.SimpleNamespace(__version__="0.19.1")
        if name == compat.NIXL_OLD:
            old = types.ModuleType(name)
            old.__dict__.update(NixlConnector=Connector, NixlConnectorScheduler=Scheduler)
            return old
        raise ModuleNotFoundError(name=compat.NIXL)

    monkeypatch.setattr("importlib.import_module", find)
    found = compat.load()
    assert found.connector is Connector
    assert choose(found).fix == "unpatched"


def test_what_the_stock_connector_misses_is_its_own_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        if name == "vllm":
            return types.SimpleNamespace(__version__="0.29.0")
        raise ModuleNotFoundError(name="zmq")

    monkeypatch.setattr("importlib.import_module", find)
    with pytest.raises(ModuleNotFoundError) as caught:
        compat.load()
    assert caught.value.name == "zmq"
