"""What the fixed connector says of itself, read from the scheduler's connector.

connector.py's class has `stanch_fix` (a contract.Fix), `stanch_fix_reason` and `stanch_guard`. Any other
connector has none of them.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from stanch_connector.contract import Fix
from stanch_connector.engine.guard import Guard

# The defect, and its fix upstream, are of the NIXL pull connector: vLLM 0.30.0 (PR 56640).
FIXED_UPSTREAM = (0, 30)


def fix_of(scheduler: Any) -> tuple[Fix, str]:
    """(fix, one sentence why)."""
    connector = getattr(scheduler, "connector", None)
    if connector is None:
        return "not-needed", "there is no KV connector"
    parts = parts_of(scheduler)
    for part in parts:
        fix = getattr(part, "stanch_fix", None)
        off = getattr(getattr(part, "stanch_guard", None), "disabled", None)
        if fix == "active" and off is not None:
            return "unpatched", f"the fix turned itself off: {off}"
        if fix in get_args(Fix):
            return cast("Fix", fix), str(getattr(part, "stanch_fix_reason", ""))
    names = ", ".join(type(part).__name__ for part in parts)
    if not any("Nixl" in base.__name__ for part in parts for base in type(part).__mro__):
        return "not-needed", f"the known defect is of the NIXL connector; loaded: {names}"
    version = vllm_version()
    if version is not None and version >= FIXED_UPSTREAM:
        return "not-needed", "this vLLM has the fix (0.30 and later)"
    return "unpatched", f"the stock connector is loaded: {names}"


def engine_id_of(scheduler: Any) -> str | None:
    """The id by which the peers' connectors know this engine; with data parallelism vLLM gives each rank its
    own, the configured one with _dpN (v1/engine/core.py). None: it has no connector, or that does not say."""
    for part in parts_of(scheduler):
        own = getattr(part, "engine_id", None)
        if isinstance(own, str) and own:
            return own
    return None


def parts_of(scheduler: Any) -> list[Any]:
    """The scheduler's connector, and those within it."""
    connector = getattr(scheduler, "connector", None)
    return [] if connector is None else parts_within(connector)


def parts_within(connector: Any) -> list[Any]:
    """The connector, and where it is a MultiConnector those that it keeps in _connectors."""
    return [connector, *(getattr(connector, "_connectors", None) or ())]


def errors_of(scheduler: Any, guard: Guard) -> dict[str, int]:
    """Exceptions caught in this process, by hook: the kit's, and the fixed connector's scheduler side's."""
    errors = dict(guard.errors)
    for part in parts_of(scheduler):
        other = getattr(part, "stanch_guard", None)
        if isinstance(other, Guard) and other is not guard:
            for hook, count in other.errors.items():
                errors[hook] = errors.get(hook, 0) + count
    return errors


def vllm_version() -> tuple[int, int] | None:
    """(major, minor); None where it cannot be told."""
    try:
        from vllm.version import __version__

        major, minor = __version__.split(".")[:2]
        return int(major), int(minor)
    except (ImportError, ValueError):
        return None
