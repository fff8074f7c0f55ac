"""How a probe ended, and what the counters of both ends say of a request that was answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from stanch.core.sample import counted
from stanch.edge.exposition import EngineReading, Page

# Of the decode's answer. The KV of the prompt is all that its first token needs.
DECODE_TOKENS = 2


class End(str, Enum):
    WORKS = "works"
    BROKE = "broke"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Probed:
    """where: prefill, handover, decode or transfer; None where nothing broke. why: one sentence.

    prefill_seconds, decode_seconds: until the answer; None where none came.
    """

    end: End
    where: str | None
    why: str
    request_id: str
    prompt_tokens: int = 0
    prefill_seconds: float | None = None
    decode_seconds: float | None = None


class MisuseError(Exception):
    """What was asked for cannot be done with this pair, whatever state it is in: nothing was sent."""


class StopError(Exception):
    """The probe ends here."""

    def __init__(self, end: End, where: str, why: str) -> None:
        super().__init__(why)
        self.end, self.where, self.why = end, where, why


def judge(before: Mapping[str, Page], after: Mapping[str, Page], tokens: int) -> str:
    """What the counters of both ends say of a request that was answered. Raises StopError where that is bad.

    Other traffic may move them too: that can make a failure of another look like ours, and never the reverse.
    """
    for where in before:
        for page in (before[where], after[where]):
            if page.problem is not None:
                why = f"the token came, but how cannot be told: the {where} engine's metrics: {page.problem}"
                raise StopError(End.UNKNOWN, "transfer", why)
        if before[where].process_start != after[where].process_start:
            raise StopError(End.BROKE, where, f"the {where} engine restarted during the probe")
    rose = []
    for where in before:
        for name, words in (("failed_transfers", "transfers"), ("failed_notifications", "notifications")):
            was, now = total(before[where], name), total(after[where], name)
            if was is not None and now is not None and now > was:
                rose.append(f"{now - was:g} failed {words} on the {where} engine")
    if rose:
        why = f"the token came, but meanwhile there were {' and '.join(rose)}"
        raise StopError(End.BROKE, "transfer", why)
    for name in ("transferred_tokens", "external_hits"):
        was, now = total(before["decode"], name), total(after["decode"], name)
        if now is None:
            continue
        if now - (was or 0.0) >= tokens / 2:
            return "the token came, and the prompt's KV by transfer"
        why = (
            f"the token came by recompute: of {tokens} tokens of the prompt {now - (was or 0.0):g} were "
            "transferred"
        )
        raise StopError(End.BROKE, "transfer", why)
    why = "the token came, but whether its KV did cannot be told: the decode engine counts no transfers"
    raise StopError(End.UNKNOWN, "transfer", why)


def total(page: Page, name: str) -> float | None:
    """A value over all engines of a page; None where none has it."""
    values = [counted(_value(engine, name)) for engine in page.engines]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _value(engine: EngineReading, name: str) -> float | None:
    value: float | None = getattr(engine, name)
    return value
