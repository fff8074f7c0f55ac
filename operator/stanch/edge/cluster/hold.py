"""Taking the operator's Lease away from it, so that no operator acts for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from stanch.edge.cluster.errors import AlreadyExists, Conflict, NotFound, Object
from stanch.edge.cluster.lease import ACT_SHARE, written
from stanch.edge.cluster.refs import LEASES, Request
from stanch.edge.cluster.transport import Transport

# Its holder renews it every few seconds: to be overtaken twice is bad luck.
_TRIES = 5


async def hold(
    transport: Transport, clock: Callable[[], float], name: str, namespace: str, identity: str, seconds: float
) -> float:
    """Write `identity` into the Lease for so many seconds, whoever holds it. For how many seconds from now
    the one before may still act: so long after its last renewal it believes in it. Raises ClusterError."""
    request = Request("get", LEASES, namespace, name)
    for number in range(_TRIES):
        before: Object | None = None
        with suppress(NotFound):
            before = await transport.read(request)
        body = written(name, namespace, before, identity, seconds, clock())
        verb, of = ("create", None) if before is None else ("update", name)
        try:
            await transport.write(Request(verb, LEASES, namespace, of, body=body))
        except (AlreadyExists, Conflict):
            if number + 1 == _TRIES:
                raise
        else:
            spec = (before or {}).get("spec") or {}
            holder, lasts = spec.get("holderIdentity") or "", spec.get("leaseDurationSeconds") or 0
            return 0.0 if holder in ("", identity) else float(lasts) * ACT_SHARE
    raise AssertionError("each try returns or raises")
