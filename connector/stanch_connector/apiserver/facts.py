"""What a vLLM configuration says about the KV connector: the standing part of the state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stanch_connector.contract import KitState

# kv_lease_duration and decoder_kv_blocks_ttl: nixl/base_scheduler.py and pull_scheduler.py, 0.22 to 0.32.
DEFAULT_LEASE_SECONDS = 30.0
DEFAULT_PIN_SECONDS = 480.0
LEASES_SINCE = (0, 22)
# Before them one environment variable, with this default from 0.11.1 to 0.21.
OLD_VARIABLE = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"


def facts(vllm_config: Any, version: tuple[int, int] | None) -> KitState:
    """connector, role, engineIds, leaseSeconds, pinSeconds, bidirectional; null is what cannot be told or is
    not there."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    connector = getattr(transfer, "kv_connector", None)
    state: KitState = {
        "connector": connector,
        "role": getattr(transfer, "kv_role", None),
        "pinSeconds": None,
        "leaseSeconds": None,
        "bidirectional": None,
        "engineIds": _engine_ids(vllm_config, transfer),
    }
    extra = getattr(transfer, "kv_connector_extra_config", None)
    if not connector or not _may_be_nixl(transfer) or not isinstance(extra, Mapping) or version is None:
        return state
    bidirectional = bool(extra.get("bidirectional_kv_xfer", False))
    if version >= LEASES_SINCE:
        lease = float(extra.get("kv_lease_duration", DEFAULT_LEASE_SECONDS))
        pin = float(extra.get("decoder_kv_blocks_ttl", DEFAULT_PIN_SECONDS))
    else:
        lease = pin = float(os.environ.get(OLD_VARIABLE, DEFAULT_PIN_SECONDS))
    state["bidirectional"] = bidirectional
    state["leaseSeconds"] = lease
    state["pinSeconds"] = pin if bidirectional else None
    return state


def _engine_ids(vllm_config: Any, transfer: Any) -> dict[str, str]:
    """Of an engine that is alone, whose id is the configuration's; with data parallelism each rank has
    another (v1/engine/core.py, 0.18 to 0.33), which only the rank itself knows."""
    parallel = getattr(vllm_config, "parallel_config", None)
    alone = getattr(parallel, "data_parallel_size", None) == 1
    alone = alone and not getattr(parallel, "data_parallel_rank", 0)
    own = getattr(transfer, "engine_id", None)
    return {"0": own} if alone and isinstance(own, str) and own else {}


def _may_be_nixl(transfer: Any) -> bool:
    """The stock NIXL connectors, ours, and other subclasses loaded by path are called by a name of their
    own."""
    name = str(transfer.kv_connector)
    return "nixl" in name.lower() or bool(getattr(transfer, "kv_connector_module_path", None))
