"""What targets tell of themselves besides their readings: version, role, and the kit's word; and the policy
that follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from stanch.core.policy import PIN_MARGIN_SECONDS, Policy, lease_of_version
from stanch.core.sample import Role
from stanch.edge import engine
from stanch.edge.kits import Kits
from stanch.edge.reading import role_evidence
from stanch.edge.scrape import Scrape
from stanch.edge.targets import Watched
from stanch.edge.waking import ended

# A version that was not said is asked for again, but not at every turn.
_ASK_AGAIN_SECONDS = 60.0
_AT_ONCE = 32
# In push mode a parked request may wait for its registration's time-out (vLLM 0.24 and later).
_PUSH_SECONDS = 480.0 + PIN_MARGIN_SECONDS


class Learned:
    """versions: by the target's name; None where it did not say, absent until it was asked."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float], kits: Kits) -> None:
        self.versions: dict[str, str | None] = {}
        self._session = session
        self._clock = clock
        self._kits = kits
        self._roles: dict[str, Role] = {}
        # A target's policy lives as long as we do, so its address names it.
        self._policies: dict[tuple[int, float, float, float], Policy] = {}
        self._learning: set[asyncio.Task[None]] = set()
        self._asked: dict[str, float] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def learn(self, watched: Watched) -> None:
        """Ask its version and its kit's state; one that does not say is unknown."""
        self._asked[watched.target.name] = self._clock()
        async with self._gate:
            self.versions[watched.target.name] = await engine.version(self._session, watched.base)
        await self._kits.learn(watched)

    def learn_again(self, watched: Watched) -> None:
        """In the background; until then nothing is known of it but its role."""
        self.versions.pop(watched.target.name, None)
        self._kits.forget(watched.target.name)
        task = asyncio.ensure_future(self.learn(watched))
        self._learning.add(task)
        task.add_done_callback(self._learning.discard)

    def learn_if_unsaid(self, watched: Watched, scrape: Scrape) -> None:
        """One that was down, or still starting, when it was asked."""
        name = watched.target.name
        unknown = name in self.versions and self.versions[name] is None and scrape.problem is None
        if unknown and self._clock() - self._asked[name] >= _ASK_AGAIN_SECONDS:
            self.learn_again(watched)

    def forget(self, name: str) -> None:
        """It is another target, or none."""
        self._roles.pop(name, None)
        self._asked.pop(name, None)
        self.versions.pop(name, None)
        self._kits.forget(name)

    def take(self, scrape: Scrape) -> None:
        """A page shows what its engine does."""
        name, role = scrape.target.name, role_evidence(scrape.page)
        # A prefill by its requests may be a young decode that so far was only probed; a decode is one.
        if role is Role.DECODE or (role is not None and name not in self._roles):
            self._roles[name] = role

    def role(self, watched: Watched) -> Role:
        if watched.role is not None:
            return watched.role
        facts = self._kits.facts(watched.target.name)
        if facts is not None and facts.role is not None:
            return facts.role
        return self._roles.get(watched.target.name, Role.UNKNOWN)

    def policy_of(self, watched: Watched) -> Policy:
        """The target's policy, with the lease and pin times that its kit or its version tells."""
        policy = watched.policy
        lease, pin, parked = told = self._told(policy, watched.target.name)
        key = (id(policy), *told)
        if key not in self._policies:
            self._policies[key] = replace(
                policy, lease_seconds=lease, kv_pin_seconds=pin, parked_remote_kv_seconds=parked
            )
        return self._policies[key]

    def policy_for_a_person(self, watched: Watched) -> Policy:
        """The same for what a person suspects of the target."""
        policy = watched.policy.for_a_person()
        lease, pin, parked = self._told(policy, watched.target.name)
        return replace(policy, lease_seconds=lease, kv_pin_seconds=pin, parked_remote_kv_seconds=parked)

    def _told(self, policy: Policy, name: str) -> tuple[float, float, float]:
        """Lease, pin time and the limit of parked requests, with what the target's kit or version tells."""
        facts, lease, pin = self._kits.facts(name), policy.lease_seconds, policy.kv_pin_seconds
        parked = policy.parked_remote_kv_seconds
        if facts is not None:
            lease = lease or facts.lease_seconds
            # The longer of what the user and the engine say: too early is worse than too late.
            pin = max(pin, (facts.pin_seconds or 0.0) if facts.bidirectional else 0.0)
            if "push" in (facts.connector or "").lower():
                parked = max(parked, _PUSH_SECONDS)
        if lease is None:
            lease = lease_of_version(engine.parsed_version(self.versions.get(name)))
        return lease, pin, parked

    async def close(self) -> None:
        await ended(*self._learning)
