"""What a Lease says and what to do about it. Pure; times are seconds of the caller's own monotonic clock.

Nobody's clock is compared with another's: a Lease has run out when it stood unchanged, as seen from here, for
as long as it lasts. Its holder stops earlier, by when its last renewal was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from stanch.edge.cluster.errors import Object
from stanch.edge.cluster.refs import LEASES

# A holder may act for this share of the Lease after its last renewal was sent, and renews it five times.
ACT_SHARE = 2 / 3
RENEW_SHARE = 1 / 5


class Step(Enum):
    RENEW = "renew"
    TAKE = "take"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease as last read. since: when it was first read like this."""

    lease: Object
    since: float

    @property
    def holder(self) -> str:
        return _spec(self.lease).get("holderIdentity") or ""


def see(before: Seen | None, lease: Object, now: float) -> Seen:
    """What was read now; unchanged since before, where it was that already."""
    if before is not None and before.lease["metadata"] == lease["metadata"]:
        return before
    return Seen(lease, now)


def step(seen: Seen, identity: str, now: float) -> Step:
    if seen.holder == identity:
        return Step.RENEW
    lasts = _spec(seen.lease).get("leaseDurationSeconds") or 0
    return Step.TAKE if not seen.holder or now - seen.since >= lasts else Step.WAIT


def written(
    name: str, namespace: str, before: Object | None, identity: str, seconds: float, unix: float
) -> Object:
    """The Lease with us as its holder, or (identity "") given up; with the version of the one before, where
    there is one, so that only one of two candidates can have written it. unix: for people who look at it."""
    moment = datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    old = {} if before is None else _spec(before)
    changes = old.get("holderIdentity") != identity
    meta = {"name": name, "namespace": namespace}
    if before is not None:
        meta["resourceVersion"] = before["metadata"]["resourceVersion"]
    return {
        "apiVersion": LEASES.api_version,
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": identity,
            # Whole seconds, at least one.
            "leaseDurationSeconds": max(1, round(seconds)),
            "acquireTime": moment if changes else old.get("acquireTime", moment),
            "renewTime": moment,
            "leaseTransitions": old.get("leaseTransitions", 0)
            + (1 if changes and before and identity else 0),
        },
    }


def _spec(lease: Object) -> Object:
    return lease.get("spec") or {}
