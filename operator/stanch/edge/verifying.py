"""VERIFY: whether an engine that was restarted is well, by a canary, its usage and real transfers."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp

from stanch.core.confirm import Outcome as CanaryOutcome
from stanch.core.history import Result
from stanch.core.report import percent
from stanch.core.sample import Role, problem
from stanch.edge import engine, kit
from stanch.edge.asking import labels_of
from stanch.edge.errors import FileError
from stanch.edge.kit_answers import KitError
from stanch.edge.live import Live
from stanch.edge.probe import Probe
from stanch.edge.probed import End
from stanch.edge.targets import Watched

_CANARY_SECONDS = 30.0
_PROBE_SECONDS = 20.0


async def verified(
    live: Live,
    session: aiohttp.ClientSession,
    role: Role,
    own: Sequence[Watched],
    peers: Sequence[Watched],
    floor_ratio: float,
) -> tuple[Result, str]:
    """own: the unit's targets, peers: those of its live peers, on the other side of its transfers."""
    if not own:
        return Result.FAILED, "none of its engines has an address"
    for watched in own:
        if (wrong := await _unwell(live, session, watched, floor_ratio)) is not None:
            return Result.FAILED, wrong
    if not peers:
        return Result.NO_PEER, "a canary was answered; no live peer was there to prove a transfer with"
    broke, unknown, works = list[str](), list[str](), list[str]()
    # One at a time: each is judged by counters that another probe would move.
    for watched in own:
        for peer in peers:
            pair = (peer, watched) if role is Role.DECODE else (watched, peer)
            found = await Probe(session, *pair, timeout_seconds=_PROBE_SECONDS, key=live.key).run()
            if found.end is End.WORKS:
                works.append(peer.target.name)
            # A peer that has just gone, or is not well itself, says nothing of the one that was restarted.
            elif found.end is End.BROKE and await engine.healthy(session, peer.base):
                broke.append(f"through {peer.target.name}: {found.why}")
            else:
                unknown.append(f"through {peer.target.name}: {found.why}")
    if broke:
        return Result.FAILED, "; ".join(broke)
    if not works:
        return Result.NO_PEER, f"a canary was answered; a transfer could not be proved {'; '.join(unknown)}"
    return Result.OK, f"a canary was answered, and a transfer worked with {_named(works)}"


def _named(peers: Sequence[str]) -> str:
    different = sorted(set(peers))
    return different[0] if len(different) == 1 else f"each of {len(different)} live peers"


async def _unwell(
    live: Live, session: aiohttp.ClientSession, watched: Watched, floor_ratio: float
) -> str | None:
    """What is wrong with the engines of one server; None where a canary is answered and nothing is held."""
    name = watched.target.name
    boot_id = None
    try:
        boot_id = (await kit.state(session, watched.base)).boot_id
    except KitError as error:
        if not error.absent:
            return f"{name}: {error}"
    await live.look_again([name])
    scrape = live.newest(name)
    if scrape is None or scrape.problem is not None:
        return f"{name} cannot be read: {'no page' if scrape is None else scrape.problem}"
    labels = labels_of(scrape)
    try:
        key = live.key()
    except FileError as error:
        return f"{name}: no canary was sent: {error}"
    for rank in range(len(labels)) if len(labels) > 1 else [None]:
        address = engine.Address(watched.base, rank, key, boot_id)
        canary = await engine.canary(session, address, _CANARY_SECONDS)
        if canary.outcome is not CanaryOutcome.FINISHED:
            where = name if rank is None else f"{name} rank {labels[rank]}"
            return f"{where}: the canary {canary.outcome.value} {canary.detail}".rstrip()
    await live.look_again([name])
    scrape = live.newest(name)
    assert scrape is not None
    for sample in scrape.samples:
        if (unfit := problem(sample)) is not None:
            return f"{sample.engine} cannot be read: {unfit}"
        # It serves others again already, and a request whose KV is on its way waits and holds blocks.
        if (sample.usage or 0.0) >= floor_ratio and not sample.running and not sample.waiting:
            held = percent(sample.usage)
            return f"{sample.engine} holds {held} of its KV cache with nothing running or waiting"
    return None
