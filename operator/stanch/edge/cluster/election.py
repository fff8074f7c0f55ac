"""One Lease: of several operators one is active."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from stanch.edge.cluster.errors import ClusterError, NotFound, Object
from stanch.edge.cluster.lease import ACT_SHARE, RENEW_SHARE, Seen, Step, see, step, written
from stanch.edge.cluster.refs import LEASES, Request
from stanch.edge.cluster.transport import Transport, decoded
from stanch.edge.waking import ended, woken

LEASE_SECONDS = 15.0


class Election:
    """Takes part in the election from the moment it is entered until it is left; then the Lease is given up,
    so that the next one need not wait for its end.

        async with cluster.election("stanch", identity=pod_name) as election:
            while True:
                await election.elected()
                work = asyncio.create_task(...)
                await election.lost()
                work.cancel()

    problem: why the Lease could not be read or written the last time, None where it could.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        name: str,
        namespace: str,
        identity: str,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.problem: str | None = None
        self._transport = transport
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._seconds = lease_seconds
        self._seen: Seen | None = None
        self._act_until = 0.0
        self._turn = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether we may act right now: our Lease was renewed, and nobody can have taken it since."""
        return time.monotonic() < self._act_until

    @property
    def holder(self) -> str:
        """Who holds the Lease as far as we know, "" where nobody does."""
        return "" if self._seen is None else self._seen.holder

    async def looked(self) -> None:
        """Returns after the next look at the Lease, whatever came of it."""
        await self._turn.wait()

    async def elected(self) -> None:
        """Returns once we lead."""
        while not self.leads:
            await self._turn.wait()

    async def lost(self) -> None:
        """Returns once we do not lead: another took the Lease, or it could not be renewed in time."""
        while self.leads:
            await woken(self._turn, max(0.0, self._act_until - time.monotonic()))

    async def __aenter__(self) -> Election:
        self._task = asyncio.create_task(self._run(), name=f"lease {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await ended(self._task)
        held, self._act_until = self.leads, 0.0
        if held and self._seen is not None:
            # Failing that, it runs out.
            with suppress(ClusterError):
                await self._write("update", self._seen.lease, "")

    async def _run(self) -> None:
        while True:
            try:
                await self._try()
                self.problem = None
            except ClusterError as error:
                # A Conflict too: somebody was faster, and the next look shows who.
                self.problem = str(error)
            # Whoever waits looks again.
            self._turn.set()
            self._turn.clear()
            await asyncio.sleep(self._seconds * RENEW_SHARE)

    async def _try(self) -> None:
        request = Request("get", LEASES, self._namespace, self._name)
        try:
            lease = await self._send(request)
        except NotFound:
            self._seen, self._act_until = None, 0.0
            await self._take(None)
            return
        now = time.monotonic()
        self._seen = see(self._seen, lease, now)
        what = step(self._seen, self._identity, now)
        if what is Step.WAIT:
            self._act_until = 0.0
        else:
            await self._take(lease)

    async def _take(self, before: Object | None) -> None:
        sent = time.monotonic()
        verb = "create" if before is None else "update"
        self._seen = Seen(await self._write(verb, before, self._identity), sent)
        self._act_until = sent + self._seconds * ACT_SHARE

    async def _write(self, verb: str, before: Object | None, identity: str) -> Object:
        body = written(self._name, self._namespace, before, identity, self._seconds, self._clock())
        name = None if before is None else self._name
        return await self._send(Request(verb, LEASES, self._namespace, name, body=body))

    async def _send(self, request: Request) -> Object:
        """Urgent: a Lease that waits behind lists is lost. In time for another try before we must stop."""
        return decoded(request, await self._transport.send(request, self._seconds / 3, urgent=True))
