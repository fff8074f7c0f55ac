"""Import a version's own NIXL sources without what they stand on (torch, zmq, the rest of vLLM).

The modules of `vllm.distributed.kv_transfer.kv_connector.v1.nixl` are the version's files, unchanged. What
else they import of STAND_INS is a stand-in that accepts everything and does nothing; the base classes of the
connector are small real ones. Nothing of it stays in sys.modules afterwards.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
STAND_INS = (
    "vllm",
    "torch",
    "zmq",
    "nixl",
    "nixl_cu12",
    "nixl_cu13",
    "msgspec",
    "numpy",
    "prometheus_client",
)


class Anything:
    """Called, read, subscripted, subclassed, compared or used as a type: never an error, never true."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: Any) -> Any:
        return Anything()

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


class StandIn(ModuleType):
    """A module in which everything is Anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class ConnectorBase:
    """What the facade needs of vLLM's KVConnectorBase_V1."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config = vllm_config
        self._connector_metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata


class Metadata:
    """Stands for the plain base classes of the metadata."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The version's files for NIXL, stand-ins for the rest of what is not to be imported here."""

    def __init__(self, nixl: Path, version: str) -> None:
        self._nixl, self._version = nixl, version

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == NIXL or name.startswith(NIXL + "."):
            file = self._nixl / (name[len(NIXL) + 1 :].replace(".", "/") + ".py")
            if name == NIXL:
                # Not the version's __init__: it imports push mode too, which is none of our business.
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file)
            return None
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: ModuleType = ModuleType(spec.name) if spec.name == NIXL else StandIn(spec.name)
        if spec.name == "vllm":
            module.__dict__["__version__"] = self._version
        if spec.name == BASE:
            module.__dict__.update(
                KVConnectorBase_V1=ConnectorBase,
                SupportsHMA=type("SupportsHMA", (), {}),
                KVConnectorMetadata=Metadata,
                KVConnectorHandshakeMetadata=Metadata,
                KVConnectorWorkerMetadata=Metadata,
                KVConnectorRole=ROLES,
            )
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class Roles:
    """KVConnectorRole."""

    SCHEDULER = "scheduler"
    WORKER = "worker"


ROLES = Roles()


@contextmanager
def imported(nixl: Path, version: str) -> Iterator[None]:
    """For the length of the block, `vllm` is this version's NIXL and stand-ins."""
    finder = Finder(nixl, version)
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in STAND_INS}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [one for one in sys.modules if one.split(".")[0] in STAND_INS]:
            del sys.modules[name]
        sys.modules.update(before)
