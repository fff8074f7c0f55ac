"""What the fixed connector says of itself, read from the scheduler's connector.

connector.py's class has `stanch_fix` (a contract.Fix) and `stanch_fix_reason`. Any other connector has
neither.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from stanch_connector.contract import Fix

# The defect, and its fix upstream, are of the NIXL pull connector: vLLM 0.30.0 (PR 56640).
FIXED_UPSTREAM = (0, 30)


def fix_of(scheduler: Any) -> tuple[Fix, str]:
    """(fix, one sentence why)."""
    connector = getattr(scheduler, "connector", None)
    if connector is None:
        return "not-needed", "there is no KV connector"
    # MultiConnector keeps its parts in _connectors.
    parts = [connector, *(getattr(connector, "_connectors", None) or ())]
    for part in parts:
        fix = getattr(part, "stanch_fix", None)
        if fix in get_args(Fix):
            return cast("Fix", fix), str(getattr(part, "stanch_fix_reason", ""))
    names = ", ".join(type(part).__name__ for part in parts)
    if not any("Nixl" in base.__name__ for part in parts for base in type(part).__mro__):
        return "not-needed", f"the known defect is of the NIXL connector; loaded: {names}"
    version = vllm_version()
    if version is not None and version >= FIXED_UPSTREAM:
        return "not-needed", "this vLLM has the fix (0.30 and later)"
    return "unpatched", f"the stock connector is loaded: {names}"


def vllm_version() -> tuple[int, int] | None:
    """(major, minor); None where it cannot be told."""
    try:
        from vllm.version import __version__

        major, minor = __version__.split(".")[:2]
        return int(major), int(minor)
    except (ImportError, ValueError):
        return None
