"""What the list needs of vLLM's scheduler, checked by what is there.

Looked up in the sources of every minor from 0.18 to 0.33: `requests`, `kv_cache_manager` and the methods
of HOOKED are there with the same first argument. Before 0.18 there is no second queue, and
_update_waiting_for_remote_kv is asked at every step instead of once: such a scheduler counts as unknown.
"""

from __future__ import annotations

from typing import Any, Final

# Methods of the scheduler through which every change of phase goes, once per change.
HOOKED: Final = (
    "add_request",
    "_free_request",
    "_free_blocks",
    "_preempt_request",
    "_update_waiting_for_remote_kv",
)
# The connector's method that is called once after each allocation for a new or resumed request, right
# before it is parked or runs.
HOOKED_CONNECTOR: Final = "update_state_after_alloc"


class UnknownLayoutError(Exception):
    """This vLLM is not shaped as the kit knows it; the message says what is missing."""


def check(scheduler: Any) -> None:
    """Raises UnknownLayoutError unless all that the list and its hooks touch is there."""
    missing = [name for name in HOOKED if not callable(getattr(scheduler, name, None))]
    if not (hasattr(scheduler, "skipped_waiting") or hasattr(scheduler, "deferred_waiting")):
        missing.append("skipped_waiting")
    if not isinstance(getattr(scheduler, "requests", None), dict):
        missing.append("requests")
    manager = getattr(scheduler, "kv_cache_manager", None)
    if not callable(getattr(manager, "get_blocks", None)):
        missing.append("kv_cache_manager.get_blocks")
    if not isinstance(getattr(getattr(manager, "block_pool", None), "num_gpu_blocks", None), int):
        missing.append("kv_cache_manager.block_pool.num_gpu_blocks")
    connector = getattr(scheduler, "connector", None)
    if connector is not None and not callable(getattr(connector, HOOKED_CONNECTOR, None)):
        missing.append(f"connector.{HOOKED_CONNECTOR}")
    if missing:
        raise UnknownLayoutError(f"this vLLM's scheduler has no {', no '.join(missing)}")


def ids_are_randomized() -> bool:
    """Whether vLLM puts 8 random hex digits on each request id (0.14 and later, unless switched off)."""
    try:
        from vllm import envs
        from vllm.v1.engine import input_processor
    except ImportError:
        # Before there was an input_processor module; the suffix came later.
        return False
    if not hasattr(input_processor.InputProcessor, "assign_request_id"):
        return False
    return not getattr(envs, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False)
