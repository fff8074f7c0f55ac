"""Which call to the API server gets which fault. Pure; proxy.py acts on it.

    Rule(Refuse(429, retry_after_seconds=2), verb="create", resource="pods/eviction")   # the first eviction
    Rule(Refuse(500, applied=True), verb="patch", resource="pods", nth=3)     # takes effect, but says 500
    Rule(SilentWatch(after_events=5), verb="watch", resource="leakwatches", times=None)  # every such watch

Verbs and resources are Kubernetes' own, as RBAC has them: an eviction is `create` of `pods/eviction`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "HEAD": "get"}
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as RBAC would see it. resource: with its subresource; empty for /version and the like."""

    verb: str
    resource: str
    group: str = ""
    namespace: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """A Status with this code. applied: the call goes through first, and only its answer is a lie."""

    code: int
    retry_after_seconds: int | None = None
    applied: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is closed without an answer."""

    applied: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the client leaves or this time is over; then the connection is closed."""

    seconds: float | None = None
    applied: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer comes this late; of a watch its start and each event."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CutWatch:
    """The watch ends after so many events: in order, as at its time limit, or by a reset connection."""

    after_events: int = 0
    in_order: bool = True


@dataclass(frozen=True, slots=True)
class SilentWatch:
    """The watch stays open after so many events, but no further one comes."""

    after_events: int = 0


@dataclass(frozen=True, slots=True)
class ExpireWatch:
    """After so many events comes the event ERROR with a Status 410, and the watch ends."""

    after_events: int = 0


WatchFault = CutWatch | SilentWatch | ExpireWatch
Fault = Refuse | Drop | Hang | Slow | WatchFault


@dataclass(frozen=True, slots=True)
class Rule:
    """The fault for the nth call that it fits (from 1, counted from when the rule was added) and the ones
    after it, `times` in all; None: for ever. "*" and None fit everything."""

    fault: Fault
    verb: str = "*"
    resource: str = "*"
    name: str | None = None
    namespace: str | None = None
    nth: int = 1
    times: int | None = 1

    def __post_init__(self) -> None:
        if isinstance(self.fault, WatchFault) and self.verb != "watch":
            raise ValueError(f'{self.fault} needs verb="watch", not {self.verb!r}')
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise ValueError(f"nth and times count from 1: {self}")

    def fits(self, call: Call) -> bool:
        return (
            self.verb in ("*", call.verb)
            and self.resource in ("*", call.resource)
            and self.name in (None, call.name)
            and self.namespace in (None, call.namespace)
        )

    def is_due(self, count: int) -> bool:
        """Whether the call that is number `count` of those that fit gets the fault."""
        return count >= self.nth and (self.times is None or count < self.nth + self.times)


@dataclass(slots=True)
class Seen:
    """One call that came. status: what the client got; None as long as, and where, it got no answer."""

    call: Call
    fault: Fault | None
    status: int | None = None


@dataclass(slots=True)
class _Counted:
    rule: Rule
    count: int = 0


@dataclass
class Faults:
    """The rules in force, and every call that came. A test adds while the proxy takes."""

    seen: list[Seen] = field(default_factory=list)
    _rules: list[_Counted] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *rules: Rule) -> None:
        with self._lock:
            self._rules += [_Counted(rule) for rule in rules]

    def clear(self) -> None:
        """No rule any more, and nothing seen."""
        with self._lock:
            self._rules.clear()
            self.seen.clear()

    def take(self, call: Call) -> Seen:
        """Note the call. Each rule that fits counts it; the first of those that are due gives the fault."""
        with self._lock:
            fault = None
            for counted in self._rules:
                if counted.rule.fits(call):
                    counted.count += 1
                    if fault is None and counted.rule.is_due(counted.count):
                        fault = counted.rule.fault
            seen = Seen(call, fault)
            self.seen.append(seen)
            return seen

    def hit(self) -> list[Seen]:
        """The calls that got a fault."""
        with self._lock:
            return [one for one in self.seen if one.fault is not None]


def parse(method: str, path: str, query: Mapping[str, str]) -> Call:
    """The call that an HTTP request is (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go, 1.35)."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, rest = parts[1], parts[3:]
    else:
        return Call(_VERBS.get(method, "get"), "")
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 2:
        namespace = rest[1]
        # /namespaces/NAME/status and /finalize are the Namespace's own.
        if len(rest) >= 3 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    name = rest[1] if len(rest) >= 2 else None
    resource = "/".join([rest[0], *rest[2:3]])
    if method == "GET" and name is None:
        verb = "watch" if query.get("watch") in ("1", "true") else "list"
    elif method == "DELETE" and name is None:
        verb = "deletecollection"
    else:
        verb = _VERBS.get(method, "get")
    return Call(verb, resource, group, namespace, name)


def status(code: int, call: Call, retry_after_seconds: int | None = None) -> dict[str, object]:
    """The body of a refusal, in the form that the API server gives it."""
    reason = "AlreadyExists" if code == 409 and call.verb == "create" else _REASONS.get(code, "Unknown")
    details: dict[str, object] = {"kind": call.resource, "group": call.group, "name": call.name or ""}
    if retry_after_seconds is not None:
        details["retryAfterSeconds"] = retry_after_seconds
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"injected by the test bed: {reason} on {call.verb} of {call.resource}",
        "reason": reason,
        "details": details,
        "code": code,
    }
