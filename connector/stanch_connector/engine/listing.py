"""The list: every request that the scheduler knows, read in the engine's own thread between two steps.

Nothing here changes the engine. The scheduler is duck-typed (see layout.py), so this runs against a
picture of one in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stanch_connector.contract import RequestEntry, Waits
from stanch_connector.engine.ids import client_id
from stanch_connector.engine.releaser import Releaser
from stanch_connector.ledger import Ledger
from stanch_connector.release import Facts, No

# More than any scheduler holds in practice (an engine of 10,000 waiting requests); the stuck ones come
# first.
MAX_ENTRIES: Final = 20_000
SUMMARY: Final = (
    "parked_requests",
    "parked_blocks",
    "orphan_requests",
    "orphan_blocks",
    "oldest_seconds",
)
ENDED_NORMALLY: Final = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


def read(
    scheduler: Any, ledger: Ledger, releaser: Releaser, now: float, *, randomized: bool
) -> list[RequestEntry]:
    """Every request that holds or waits for KV: those held after their end first, then the parked, then the
    rest, each the longest first."""
    usable = max(1, scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1)
    full_lora = _loras_of_a_full_engine(scheduler)
    entries = [
        _entry(request_id, request, scheduler, ledger, releaser, now, usable, full_lora, randomized)
        for request_id, request in scheduler.requests.items()
    ]
    entries.sort(key=_order)
    ledger.keep(scheduler.requests)
    return entries[:MAX_ENTRIES]


def summary(scheduler: Any, ledger: Ledger, now: float) -> dict[str, float]:
    """What the metrics say: requests and blocks parked, requests and blocks held after their end for nobody
    (orphans), and the age of the oldest of both."""
    said: dict[str, float] = dict.fromkeys(SUMMARY, 0)
    for request_id, request in scheduler.requests.items():
        status = request.status.name
        if status == "WAITING_FOR_REMOTE_KVS":
            kind = "parked"
        elif status.startswith("FINISHED") and not _kept(status, ledger.was_parked(request_id)):
            kind = "orphan"
        else:
            continue
        said[f"{kind}_requests"] += 1
        said[f"{kind}_blocks"] += held_blocks(scheduler, request_id)
        said["oldest_seconds"] = max(said["oldest_seconds"], ledger.age(request_id, status, now))
    return said


def _order(entry: RequestEntry) -> tuple[int, float]:
    if entry["clientGone"]:
        rank = 1 if entry["leased"] or entry["pinned"] else 0
    else:
        rank = 0 if entry["waitsFor"] == "remote_kv" else 2
    return rank, -entry["ageSeconds"]


def _entry(
    request_id: str,
    request: Any,
    scheduler: Any,
    ledger: Ledger,
    releaser: Releaser,
    now: float,
    usable: int,
    full_lora: frozenset[int] | None,
    randomized: bool,
) -> RequestEntry:
    status = request.status.name
    age = ledger.age(request_id, status, now)
    finished = status.startswith("FINISHED")
    blocks = held_blocks(scheduler, request_id)
    params = getattr(request, "kv_transfer_params", None)
    if not isinstance(params, Mapping):
        params = {}
    parked = ledger.was_parked(request_id) if finished else None
    kept = finished and blocks > 0 and _kept(status, parked)
    producer = bool(params.get("do_remote_decode"))
    remote = params.get("remote_engine_id")
    waits_for = _waits_for(status, parked, kept, request, full_lora)
    verdict = releaser.judge(
        request,
        Facts(
            status=status,
            parked=waits_for == "remote_kv",
            ended=finished,
            awaited=releaser.awaits(request_id),
            leased=kept and producer,
            pinned=kept and not producer,
            producer=producer,
            arrived=releaser.arrived(request_id),
            remote=remote if isinstance(remote, str) else None,
        ),
    )
    refused = verdict if isinstance(verdict, No) else None
    return {
        "id": client_id(request_id, randomized=randomized),
        "schedulerId": request_id,
        "status": status,
        "ageSeconds": round(age, 3),
        "blocks": blocks,
        "cacheShare": round(blocks / usable, 6),
        "remoteEngine": remote if isinstance(remote, str) else None,
        "clientGone": finished,
        "waitsFor": waits_for,
        "leased": kept and producer,
        "pinned": kept and not producer,
        "releasable": refused is None,
        "way": None if isinstance(verdict, No) else verdict,
        "refusal": refused.reason if refused else None,
        "refusalKind": refused.kind if refused else None,
    }


def _kept(status: str, parked: bool | None) -> bool:
    """Whether a finished request is held because the connector asked to, for a remote reader: only after a
    normal end. An aborted one is held because its receive has not been reported (finish_requests in
    v1/core/sched/scheduler.py)."""
    return parked is not True and status in ENDED_NORMALLY


def held_blocks(scheduler: Any, request_id: str) -> int:
    """Blocks that the request refers to, over all cache groups, without the null block (it stands, at the
    front of a group, for what a sliding window has let go)."""
    count = 0
    for group in scheduler.kv_cache_manager.get_blocks(request_id).blocks:
        if group and group[0].is_null:
            count += sum(not block.is_null for block in group)
        else:
            count += len(group)
    return count


def _waits_for(
    status: str, parked: bool | None, kept: bool, request: Any, full_lora: frozenset[int] | None
) -> Waits | None:
    if status == "WAITING_FOR_REMOTE_KVS":
        return "remote_kv"
    if status.startswith("FINISHED"):
        return "remote_kv" if parked or (parked is None and not kept) else None
    # FSM: its name up to 0.17.
    if status in ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_FSM"):
        return "grammar"
    if status in ("WAITING", "PREEMPTED"):
        lora = getattr(getattr(request, "lora_request", None), "lora_int_id", 0)
        return "lora" if full_lora is not None and lora and lora not in full_lora else "capacity"
    return None


def _loras_of_a_full_engine(scheduler: Any) -> frozenset[int] | None:
    """The adapters that run, where no further one has room; else None."""
    config = getattr(scheduler, "lora_config", None)
    if not config:
        return None
    running = frozenset(
        one.lora_request.lora_int_id for one in scheduler.running if getattr(one, "lora_request", None)
    )
    return running if len(running) >= config.max_loras else None
