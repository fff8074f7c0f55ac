"""One Lease: of several operators one is active."""

from __future__ import annotations


class Election:
    """Takes part in the election from the moment it is entered until it is left; then the Lease is given up,
    so that the next one need not wait for its end.

        async with cluster.election("stanch", identity=pod_name) as election:
            while True:
                await election.elected()
                work = asyncio.create_task(...)
                await election.lost()
                work.cancel()

    leads: whether we may act right now: our Lease was renewed, and by the monotonic clock nobody can have
    taken it. holder: who holds it as far as we know, "" where nobody does.
    """

    leads: bool
    holder: str

    async def elected(self) -> None:
        """Returns once we lead."""
        raise NotImplementedError

    async def lost(self) -> None:
        """Returns once we do not lead: another took the Lease, or it could not be renewed in time."""
        raise NotImplementedError

    async def __aenter__(self) -> Election:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError
