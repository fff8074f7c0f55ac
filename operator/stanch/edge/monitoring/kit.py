"""Alerts from what the engine kit adds to the engine's own /metrics (docs/engine-kit.md)."""

from __future__ import annotations

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature
from stanch.edge.monitoring import readings as r
from stanch.edge.monitoring.rules import Alert, Severity

# A step that takes long, or a start, is no silence.
_SILENT_SECONDS = 300
_UNPATCHED_SECONDS = 900


def alerts(policy: Policy) -> tuple[Alert, ...]:
    parked = policy.hold(policy.parked_remote_kv_seconds)
    return (
        Alert(
            "StanchParkedRemoteKV",
            f"stanch_oldest_stuck_seconds >= {parked:g}",
            0,
            Severity.CRITICAL,
            Signature.PARKED_REMOTE_KV.value,
        ),
        Alert(
            "StanchKitSilent",
            f"{r.PARKED} != {r.PARKED}",  # only NaN is unequal to itself
            _SILENT_SECONDS,
            Severity.WARNING,
        ),
        Alert(
            "StanchKitErrors",
            "increase(stanch_kit_errors[15m]) > 0\nor increase(stanch_kit_server_errors[15m]) > 0",
            0,
            Severity.WARNING,
        ),
        Alert(
            "StanchUnpatched",
            # Only who reads KV from elsewhere can lose a request like this.
            'stanch_fix{fix="unpatched"} == 1'
            f'\nunless ignoring(fix, model_name, role) {r.USAGE}{{role="{Role.PREFILL.value}"}}',
            _UNPATCHED_SECONDS,
            Severity.WARNING,
        ),
    )
