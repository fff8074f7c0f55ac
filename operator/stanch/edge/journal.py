"""The log of the operator: one JSON object a line for every step, every stuck request and every end.

The records are pure; one writer puts them on a stream. docs/telemetry.md has the keys (schema stanch.log/1).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final, TextIO

from stanch.core.history import Ending, Step, StepOutcome, Stuck
from stanch.edge.changes import Change, Kind
from stanch.edge.text import printable

SCHEMA = "stanch.log/1"

Record = Mapping[str, object]

_BAD_ENDINGS = frozenset({Ending.ESCALATED, Ending.FAILED})
_POOR_ENDINGS = frozenset({Ending.GAVE_UP, Ending.NOT_WATCHED})
_BAD_STEPS = frozenset({StepOutcome.FAILED, StepOutcome.INTERRUPTED})


def record(change: Change, watch: str, now: float) -> Record:
    """One change as data. watch: namespace/name."""
    incident = change.incident
    namespace = watch.partition("/")[0]
    data = {
        **_head(_level(change), change.kind.value, now),
        "watch": watch,
        "incident": f"{namespace}/{incident.name}",
        "pod": incident.pod_name,
        "pod_uid": incident.pod_uid,
        "unit": incident.unit,
        "container_id": incident.container_id,
    }
    if change.step is not None:
        data |= _step(change.step)
    if change.stuck is not None:
        data |= _stuck(change.stuck)
    if change.kind is Kind.OPENED:
        evidence = incident.evidence
        data |= {
            "trigger": incident.trigger.value,
            "signature": None if evidence.signature is None else evidence.signature.value,
            "usage": evidence.usage,
            "held_seconds": evidence.held_seconds,
            "engines": list(incident.engines),
            "episode": incident.episode,
            "message": evidence.cause,
        }
    if change.kind is Kind.WAITS:
        reason, _, message = incident.wait.partition(": ")
        data |= {"reason": reason, "message": message}
    if change.kind is Kind.CLOSED and incident.ending is not None:
        data |= {
            "ending": incident.ending.value,
            "code": incident.code,
            "seconds": None if incident.ended is None else round(incident.ended - incident.created, 3),
            "message": incident.detail,
        }
    return data


def note(level: str, event: str, now: float, message: str, **more: object) -> Record:
    """What is no change of an incident. level: info, warning or error. event: words-with-hyphens."""
    return {**_head(level, event, now), "message": message, **more}


def _head(level: str, event: str, now: float) -> dict[str, object]:
    time = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"schema": SCHEMA, "time": time, "level": level, "event": event}


def _level(change: Change) -> str:
    incident, step = change.incident, change.step
    if change.kind is Kind.CLOSED and incident.ending is not None:
        poor = "warning" if incident.ending in _POOR_ENDINGS else "info"
        return "error" if incident.ending in _BAD_ENDINGS else poor
    if change.kind is Kind.ENDED and step is not None and step.outcome in _BAD_STEPS:
        return "warning"
    return "warning" if change.kind is Kind.OPENED else "info"


def _step(step: Step) -> dict[str, object]:
    return {
        "step": step.name.value,
        "outcome": None if step.outcome is None else step.outcome.value,
        "seconds": None if step.end is None else round(step.end - step.start, 3),
        "message": step.detail,
    }


def _stuck(stuck: Stuck) -> dict[str, object]:
    return {
        "request": printable(stuck.id),
        "age_seconds": round(stuck.age_seconds, 3),
        "blocks": stuck.blocks,
        "client_gone": stuck.client_gone,
        "releasable": stuck.releasable,
        "refusal": stuck.refusal,
        "remote_engine": stuck.remote_engine,
        "peer": stuck.peer,
    }


class Journal:
    """Writes records to a stream, one line each, from any thread.

    A log that cannot be written (a full disk, a reader that has gone) stops no repair: such lines are lost,
    and counted in `lost`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.lost = 0

    def write(self, *records: Record) -> None:
        # ASCII: a line stays one, whatever a server's words have in them.
        for one in records:
            line = json.dumps(one, allow_nan=False) + "\n"
            with self._lock:
                try:
                    self._stream.write(line)
                    self._stream.flush()
                except (OSError, ValueError):
                    self.lost += 1


class LibraryLog(logging.Handler):
    """What libraries log, as lines of the journal: whoever reads the log meets no other form in it."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level, message = _level_of(record), record.getMessage()
        except Exception:
            # Its words do not fit their arguments.
            self.handleError(record)
            return
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._journal.write(note(level, "library", record.created, message, logger=record.name, trace=trace))


# kopf 1.45.2 calls it an error when it asks the API server again (`_cogs/clients/api.py`), and each task of
# its own that ends with it (`_cogs/aiokits/aiotasks.py`); that kopf has ended is told by edge/handlers.py.
_KOPF_AGAIN: Final = ("; will retry: ", "; will re-authenticate: ", " has failed: ")


def _level_of(record: logging.LogRecord) -> str:
    if record.name.startswith("kopf.") and any(words in str(record.msg) for words in _KOPF_AGAIN):
        return "info"
    return "error" if record.levelno >= logging.ERROR else "warning"
