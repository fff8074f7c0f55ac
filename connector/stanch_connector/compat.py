"""Which NIXL connector this vLLM has, and whether our fix fits it: every version fork of the connector.

`choose` is pure: it looks at classes and says what may be done with them. Only `load` imports vLLM, and only
when called. The fix is put in where the version is one that has the defect and every seam it stands on is
there, with the names and arguments that it was written for; anything else stays stock.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from stanch_connector.contract import Fix, PatchMode

NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
# One module up to 0.19, a package from 0.20 on.
NIXL_OLD: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl_connector"

# Minors of vLLM 0.x that have the defect in the layout that the fix knows.
DEFECT_MINORS: Final = range(20, 30)
# The first names are those of 0.24 and later, where push mode has classes of its own.
CONNECTOR_NAMES: Final = ("NixlPullConnector", "NixlConnector")
SCHEDULER_NAMES: Final = ("NixlPullConnectorScheduler", "NixlConnectorScheduler")
WORKER_NAMES: Final = ("NixlPullConnectorWorker", "NixlConnectorWorker")

# What vLLM's own fix added to the metadata (0.30.0).
OWN_FIX_FIELD: Final = "awaiting_kvs"

# method -> (its arguments after self, attributes that its code must use)
SCHEDULER_SEAMS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "update_state_after_alloc": (("request", "blocks", "num_external_tokens"), ("_reqs_need_recv",)),
    "build_connector_meta": (("scheduler_output",), ("_reqs_need_recv", "add_new_req_to_recv")),
}
WORKER_SEAMS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "start_load_kv": (("metadata",), ("reqs_to_recv", "_recving_metadata", "_read_blocks_for_req")),
    "_read_blocks_for_req": (("req_id", "meta"), ("_read_blocks", "local_physical_block_ids")),
    "get_finished": ((), ("_recving_transfers", "_recving_metadata", "_failed_recv_reqs")),
}
REQ_META_FIELDS: Final = ("local_block_ids", "local_physical_block_ids", "remote")
SCHEDULER_ATTRIBUTES: Final = ("_reqs_need_recv",)
WORKER_ATTRIBUTES: Final = ("_recving_transfers", "_recving_metadata", "_failed_recv_reqs")


@dataclass(frozen=True)
class Nixl:
    """What a vLLM installation has of NIXL; what is not there is None."""

    version: str
    connector: Any
    scheduler: Any = None
    worker: Any = None
    req_meta: Any = None


@dataclass(frozen=True)
class Choice:
    """What becomes of this vLLM's connector, and why, in words for a log line."""

    fix: Fix
    reason: str


def load() -> Nixl:
    """Import vLLM's NIXL connector. Raises ImportError where it has none."""
    version = str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
    try:
        module = importlib.import_module(f"{NIXL}.connector")
        metadata: ModuleType | None = importlib.import_module(f"{NIXL}.metadata")
    except ModuleNotFoundError as error:
        # Something that it needs is missing: that is the stock connector's own trouble, not another layout.
        if error.name is None or not error.name.startswith(NIXL):
            raise
        module, metadata = importlib.import_module(NIXL_OLD), None
    connector = _first(module, CONNECTOR_NAMES)
    if connector is None:
        raise ImportError(f"vLLM {version} has no NIXL connector in {module.__name__}")
    return Nixl(
        version=version,
        connector=connector,
        # Where the stock connector itself takes them from.
        scheduler=_first(module, SCHEDULER_NAMES),
        worker=_first(module, WORKER_NAMES),
        req_meta=getattr(metadata, "ReqMeta", None),
    )


def choose(nixl: Nixl) -> Choice:
    """Whether the fix goes in. Never raises: what cannot be looked at does not fit."""
    try:
        if OWN_FIX_FIELD in _fields(nixl.req_meta):
            return Choice("not-needed", f"vLLM {nixl.version} reports such requests itself")
        if not _has_defect(nixl.version):
            return Choice("unpatched", f"vLLM {nixl.version} is not a version that the fix was written for")
        misfit = next(_misfits(nixl), None)
    except Exception as error:
        misfit = f"it could not be looked at ({type(error).__name__})"
    if misfit is not None:
        return Choice("unpatched", f"vLLM {nixl.version} is laid out differently: {misfit}")
    return Choice("active", f"vLLM {nixl.version} has the defect, and the fix fits")


def side_misfit(side: Any, stock: Any, attributes: Iterable[str]) -> str | None:
    """Why the instance that the stock constructor made is not what the fix knows; None where it is."""
    if type(side) is not stock:
        return f"it is a {type(side).__name__}, not a {stock.__name__}"
    missing = [one for one in attributes if not hasattr(side, one)]
    return f"it has no {missing[0]}" if missing else None


def patch_mode(value: object) -> PatchMode:
    """The mode that kv_connector_extra_config asks for; whatever it may say that we do not know is Auto."""
    modes: Mapping[str, PatchMode] = {"always": "Always", "never": "Never"}
    return modes.get(str(value).strip().lower(), "Auto")


def _has_defect(version: str) -> bool:
    found = re.match(r"0\.(\d+)(?:\.|$)", version)
    return found is not None and int(found[1]) in DEFECT_MINORS


def _misfits(nixl: Nixl) -> Iterator[str]:
    for what, owner, seams in (
        ("scheduler", nixl.scheduler, SCHEDULER_SEAMS),
        ("worker", nixl.worker, WORKER_SEAMS),
    ):
        if not isinstance(owner, type):
            yield f"no {what} class"
            continue
        for name, (arguments, used) in seams.items():
            method = inspect.getattr_static(owner, name, None)
            if not inspect.isfunction(method):
                yield f"the {what} has no method {name}"
                continue
            found = tuple(inspect.signature(method).parameters)[1:]
            if found != arguments:
                yield f"{name} of the {what} takes {found}"
            for one in used:
                if one not in method.__code__.co_names:
                    yield f"{name} of the {what} does not use {one}"
    for field in REQ_META_FIELDS:
        if field not in _fields(nixl.req_meta):
            yield f"its metadata has no {field}"
    if any("__slots__" in vars(one) for one in getattr(nixl.req_meta, "__mro__", ())):
        yield "its metadata takes no further attribute"
    if getattr(getattr(nixl.req_meta, "__dataclass_params__", None), "frozen", False):
        yield "its metadata is frozen"


def _fields(owner: Any) -> frozenset[str]:
    if not dataclasses.is_dataclass(owner):
        return frozenset()
    return frozenset(one.name for one in dataclasses.fields(owner))


def _first(module: ModuleType, names: Iterable[str]) -> Any:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)
