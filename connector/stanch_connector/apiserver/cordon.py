"""The cordon: a lease that lives while its beat keeps changing. Pure; `now` is the kit's own monotonic clock.

Laws, each with a test:
- Without the annotation there is no cordon: fail-open.
- A beat that changes starts the lease anew; the same beat, read however often, does not.
- The lease ends by itself leaseSeconds after the last change, whatever the file says then.
- A kit that has just started does not know how old the first beat is: it counts once it changes. Where the
  kit has seen the pod without the annotation, its appearance is a change.
- A malformed annotation is ignored and counted: it neither starts, nor renews, nor ends a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stanch_connector.apiserver import strictjson
from stanch_connector.contract import CORDON_LEASE_SECONDS

# Longest lease honoured. A cordon that nobody renews must not outlive an operator's crash by much (law 7).
MAX_LEASE_SECONDS = 300.0
MAX_INCIDENT_CHARS = 253  # the name of a Kubernetes object


@dataclass(frozen=True, slots=True)
class Lease:
    """What is known of the annotation.

    beat: (incident, beat) as last read well-formed; None before. known_absent: the pod was seen without the
    annotation and no beat was read since. ends_at: monotonic seconds; None where no beat has counted.
    malformed: texts that were no cordon. text: as last read, so that one text is judged once.
    """

    beat: tuple[str, int] | None = None
    ends_at: float | None = None
    known_absent: bool = False
    malformed: int = 0
    text: str | None = None


def step(lease: Lease, text: str | None, now: float) -> Lease:
    """The lease after reading the annotation (None: the file was read and has none). A file that could not be
    read is no reading: do not call, and the lease runs out by itself."""
    if text is None:
        return Lease(known_absent=True, malformed=lease.malformed)
    if text == lease.text:
        return lease
    try:
        incident, beat, lease_seconds = parse(text)
    except strictjson.BadJSON:
        return replace(lease, malformed=lease.malformed + 1, text=text)
    first = lease.beat is None and not lease.known_absent
    if first or lease.beat == (incident, beat):
        return replace(lease, beat=(incident, beat), text=text)
    return replace(lease, beat=(incident, beat), ends_at=now + lease_seconds, known_absent=False, text=text)


def cordoned(lease: Lease, now: float) -> bool:
    return lease.ends_at is not None and now < lease.ends_at


def incident_of(lease: Lease, now: float) -> str | None:
    """The incident that holds the cordon now."""
    return lease.beat[0] if lease.beat is not None and cordoned(lease, now) else None


def parse(text: str) -> tuple[str, int, float]:
    """(incident, beat, lease in seconds) of the annotation. leaseSeconds: more than MAX_LEASE_SECONDS counts
    as that; not said is the contract's default. Raises BadJSON."""
    value = strictjson.parse_object(text)
    incident = value.get("incident", "")
    beat = value.get("beat")
    lease_seconds = strictjson.seconds(value.get("leaseSeconds", CORDON_LEASE_SECONDS))
    if not isinstance(incident, str) or len(incident) > MAX_INCIDENT_CHARS:
        raise strictjson.BadJSON("incident is not a name")
    if not isinstance(beat, int) or not strictjson.is_int(beat):
        raise strictjson.BadJSON("beat is not a whole number")
    if not lease_seconds:
        raise strictjson.BadJSON("leaseSeconds is not a number above zero")
    return incident, beat, min(lease_seconds, MAX_LEASE_SECONDS)
