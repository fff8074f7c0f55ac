"""Commands: what to carry out, once, and what became of it. Pure; `now` is the kit's own monotonic clock.

Laws, each with a test:
- Only a command for this process's boot id is carried out; so a stale one left in the file after a restart is
  not, and no wall clock decides.
- An id is carried out once in a process's life, however often and in whatever text it comes again.
- The deadline counts from the first sight of the id. What has not ended by then has failed; what a release
  did after all is still told, but it stays failed. A restart's deadline is that of its drain: it does not
  fail.
- Updates come merged and with gaps: a text that was never seen was never ordered.

        accepted ──> running ──> done | refused | failed        ignored (another boot id, an unknown verb)
            └──────────────────────^
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast, get_args

from stanch_connector.apiserver import strictjson
from stanch_connector.contract import Outcome, Verb

KEPT_OUTCOMES: Final = 32
# Ids remembered so that none is carried out twice. An id that comes again after this many others would be.
KEPT_IDS: Final = 4096
MAX_ID_CHARS: Final = 128
MAX_RELEASE_IDS: Final = 10_000
DEFAULT_DEADLINE_SECONDS: Final = 60.0
MAX_DEADLINE_SECONDS: Final = 3600.0

VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
_OPEN: Final = ("accepted", "running")
_PARTS_OF_A_RELEASE: Final = ("released", "ways", "refused", "refusals", "missingRanks")
_NEXT: Final[dict[str, tuple[str, ...]]] = {
    "accepted": ("running", "done", "refused", "failed"),
    "running": ("done", "refused", "failed"),
}


@dataclass(frozen=True, slots=True)
class ReleaseArgs:
    """ids: as the client knows them; None is every request that may be released. older_than_seconds: only
    those that old; None is any age."""

    ids: tuple[str, ...] | None = None
    older_than_seconds: float | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A command to carry out. deadline: monotonic seconds. release: only where verb is release."""

    id: str
    verb: Verb
    deadline: float
    release: ReleaseArgs | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    outcome: Outcome
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Book:
    """entries: the last KEPT_OUTCOMES, oldest first. seen: ids of this boot id, oldest first. malformed:
    texts that were no command at all. text: as last read from the file."""

    boot_id: str
    entries: tuple[Entry, ...] = ()
    seen: tuple[str, ...] = ()
    malformed: int = 0
    text: str | None = None


def watch(book: Book, text: str | None, now: float) -> tuple[Book, Order | None]:
    """The annotation as read (None: the file was read and has none). One text is judged once."""
    if text is None or text == book.text:
        return replace(book, text=text), None
    book, order, _ = take(replace(book, text=text), text, now)
    return book, order


def take(book: Book, text: str, now: float) -> tuple[Book, Order | None, Outcome]:
    """One command: the order to carry out, if any, and its outcome so far (that of before, for a known id).

    The outcome of a text that is no command has no id.
    """
    try:
        command = strictjson.parse_object(text)
        name = command.get("id")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_CHARS or not name.isprintable():
            raise strictjson.BadJSON(f"id is not 1 to {MAX_ID_CHARS} printable characters")
    except strictjson.BadJSON as bad:
        return replace(book, malformed=book.malformed + 1), None, {"state": "refused", "reason": str(bad)}
    if name in book.seen:
        return book, None, outcome_of(book, name) or {"id": name, "state": "ignored", "reason": "seen before"}
    verb = _verb(command.get("verb"))
    if not book.boot_id or command.get("bootId") != book.boot_id:
        return _ignore(book, name, verb, "for another boot id")
    if verb is None:
        return _ignore(book, name, None, "unknown verb")
    book = replace(book, seen=(*book.seen, name)[-KEPT_IDS:])
    try:
        order = _order(name, verb, command, now)
    except strictjson.BadJSON as bad:
        outcome: Outcome = {"id": name, "verb": verb, "state": "refused", "reason": str(bad)}
        return _put(book, Entry(outcome)), None, outcome
    if now >= order.deadline:
        outcome = {"id": name, "verb": verb, "state": "failed", "reason": "its deadline is zero seconds"}
        return _put(book, Entry(outcome)), None, outcome
    outcome = {"id": name, "verb": verb, "state": "accepted"}
    return _put(book, Entry(outcome, order.deadline)), order, outcome


def report(book: Book, outcome: Outcome) -> Book:
    """What the one who carries it out says. A step that the diagram does not have changes nothing, but for
    what a release did after its deadline, which is added to the failed outcome."""
    entries = list(book.entries)
    for at, entry in enumerate(entries):
        before = entry.outcome
        if before.get("id") != outcome.get("id"):
            continue
        if outcome.get("state") in _NEXT.get(before.get("state", ""), ()):
            entries[at] = replace(entry, outcome={**before, **outcome})
        elif before.get("state") == "failed" and entry.deadline is not None and "released" in outcome:
            parts = {key: value for key, value in outcome.items() if key in _PARTS_OF_A_RELEASE}
            entries[at] = replace(entry, outcome=cast(Outcome, {**before, **parts}))
        else:
            return book
        return replace(book, entries=tuple(entries))
    return book


def expire(book: Book, now: float) -> Book:
    """What has not ended by its deadline has failed."""
    if not any(_expired(entry, now) for entry in book.entries):
        return book
    entries = []
    for entry in book.entries:
        if _expired(entry, now):
            reason = entry.outcome.get("reason") or "not finished by its deadline"
            entry = replace(entry, outcome={**entry.outcome, "state": "failed", "reason": reason})
        entries.append(entry)
    return replace(book, entries=tuple(entries))


def outcome_of(book: Book, name: str) -> Outcome | None:
    return next((entry.outcome for entry in book.entries if entry.outcome.get("id") == name), None)


def outcomes(book: Book) -> list[Outcome]:
    """Oldest first."""
    return [cast(Outcome, dict(entry.outcome)) for entry in book.entries]


def _expired(entry: Entry, now: float) -> bool:
    open_ = entry.outcome.get("state") in _OPEN and entry.outcome.get("verb") != "restart"
    return open_ and entry.deadline is not None and now >= entry.deadline


def _ignore(book: Book, name: str, verb: Verb | None, reason: str) -> tuple[Book, None, Outcome]:
    outcome: Outcome = {"id": name, "state": "ignored", "reason": reason}
    if verb is not None:
        outcome["verb"] = verb
    return _put(book, Entry(outcome)), None, outcome


def _put(book: Book, entry: Entry) -> Book:
    others = tuple(old for old in book.entries if old.outcome.get("id") != entry.outcome.get("id"))
    kept = (*others, entry)
    while len(kept) > KEPT_OUTCOMES:
        # What is still under way stays as long as anything else can go.
        ended = next((at for at, old in enumerate(kept) if old.outcome.get("state") not in _OPEN), 0)
        kept = kept[:ended] + kept[ended + 1 :]
    return replace(book, entries=kept)


def _verb(value: object) -> Verb | None:
    return next((verb for verb in VERBS if verb == value), None)


def _order(name: str, verb: Verb, command: dict[str, object], now: float) -> Order:
    deadline_seconds = strictjson.seconds(command.get("deadlineSeconds", DEFAULT_DEADLINE_SECONDS))
    if deadline_seconds is None or deadline_seconds > MAX_DEADLINE_SECONDS:
        raise strictjson.BadJSON(f"deadlineSeconds is not a number from 0 to {MAX_DEADLINE_SECONDS:g}")
    args = command.get("args", {})
    if not isinstance(args, dict):
        raise strictjson.BadJSON("args is not an object")
    release = _release(args) if verb == "release" else None
    return Order(name, verb, now + deadline_seconds, release)


def _release(args: dict[str, object]) -> ReleaseArgs:
    """Unknown keys are refused here, against the contract's rule: an older kit must not release more than a
    newer operator meant to by a filter that the kit does not know."""
    unknown = args.keys() - {"ids", "olderThanSeconds", "dryRun"}
    if unknown:
        raise strictjson.BadJSON("args of release has a key that this kit does not know")
    ids = args.get("ids")
    if ids is not None and (
        not isinstance(ids, list)
        or len(ids) > MAX_RELEASE_IDS
        or not all(isinstance(one, str) and one for one in ids)
    ):
        raise strictjson.BadJSON(f"ids is not a list of at most {MAX_RELEASE_IDS} names")
    older = args.get("olderThanSeconds")
    older_than = None if older is None else strictjson.seconds(older)
    if older is not None and older_than is None:
        raise strictjson.BadJSON("olderThanSeconds is not a number, zero or more")
    dry_run = args.get("dryRun", False)
    if not isinstance(dry_run, bool):
        raise strictjson.BadJSON("dryRun is neither true nor false")
    names = None if ids is None else tuple(cast("list[str]", ids))
    return ReleaseArgs(names, older_than, dry_run)
