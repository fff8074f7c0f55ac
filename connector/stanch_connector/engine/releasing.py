"""A release order in EngineCore: which requests it means, and what becomes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypedDict

from stanch_connector.contract import Refusal, RequestEntry, Way
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.releaser import NotReleasedError, Releaser

# In one outcome, which is kept, shown, logged and shared: `refusals` and `releases` count all.
REFUSED_AT_MOST: Final = 100
RELEASED_AT_MOST: Final = 500


class Args(TypedDict, total=False):
    """ids: as the client knows them, or the scheduler; null is every stuck request. ticket: what an earlier
    `inquire` gave."""

    ids: list[str] | None
    olderThanSeconds: float | None
    dryRun: bool
    ticket: int


class Inquiry(TypedDict):
    """heard: whether every rank has said how far the meant requests are."""

    ticket: int
    heard: bool


class Released(TypedDict):
    """ways, refused, refusals: as in contract.Outcome, of this engine core. unknown: ids that none of its
    requests has."""

    ways: dict[str, Way]
    refused: dict[str, str]
    refusals: dict[str, int]
    unknown: list[str]


def inquire(
    releaser: Releaser, entries: Callable[[], list[RequestEntry]], args: Args
) -> dict[str, int | bool]:
    """Without a ticket the ranks are asked now, with it whether they have answered."""
    ticket = args.get("ticket")
    if ticket is None:
        meant, _ = _meant(entries(), args)
        ids = [one["schedulerId"] for one in meant if one["waitsFor"] == "remote_kv"]
        open_ids = [one for one in ids if not releaser.said.settled(one, releaser.world_size)]
        if releaser.nothing is not None or not open_ids:
            return {"ticket": 0, "heard": True}
        ticket = releaser.ask(open_ids)
    return {"ticket": ticket, "heard": releaser.said.heard(ticket, releaser.world_size)}


def release(
    releaser: Releaser, guard: Guard, core: object, entries: list[RequestEntry], args: Args
) -> Released:
    """Release what may be; under dryRun say what would be. One that fails does not hinder the others."""
    dry_run = bool(args.get("dryRun"))
    older_than = args.get("olderThanSeconds") or 0.0
    meant, unknown = _meant(entries, args)
    ways: dict[str, Way] = {}
    refused: dict[str, tuple[Refusal, str]] = {}
    for entry in meant:
        name, way, kind = entry["schedulerId"], entry["way"], entry["refusalKind"]
        # The age first: a young one was not meant, whatever else stands against it.
        if entry["ageSeconds"] < older_than:
            refused[name] = ("too-young", f"too young: it has been so for {entry['ageSeconds']:.0f} s")
        elif kind is not None or way is None:
            refused[name] = (kind or "failed", entry["refusal"] or "")
        elif dry_run:
            ways[name] = way
        else:
            try:
                releaser.free(core, name, complete=way == "completed", error=way == "failed")
                ways[name] = way
            except NotReleasedError as error:
                refused[name] = ("failed", str(error))
            except Exception as error:
                guard.failed("release", error)
                refused[name] = ("failed", f"vLLM did not take it: {type(error).__name__}")
    counts = Counter[str](kind for kind, _ in refused.values())
    if not dry_run:
        releaser.released.update(ways.values())
        releaser.refused.update(counts)
        # So that the gauges fall, and the ranks hear of it, though nothing else may be to do.
        releaser.force_step(one for one, way in ways.items() if way != "completed")
    return {
        "ways": ways,
        "refused": {one: reason for one, (_, reason) in list(refused.items())[:REFUSED_AT_MOST]},
        "refusals": dict(counts),
        "unknown": unknown,
    }


def _meant(entries: Iterable[RequestEntry], args: Args) -> tuple[list[RequestEntry], list[str]]:
    """The entries that the order is about, and the ids that none has."""
    ids = args.get("ids")
    if ids is None:
        return [one for one in entries if one["waitsFor"] == "remote_kv"], []
    wanted = dict.fromkeys(ids)
    meant = [one for one in entries if one["id"] in wanted or one["schedulerId"] in wanted]
    known = {one["id"] for one in meant} | {one["schedulerId"] for one in meant}
    return meant, [one for one in wanted if one not in known]
