"""What the planner would do now: a plan for what is open, a dry run for what is new, and why the rest waits.

Pure. The dry run is the planner's own (core/plan_would.py): the same ladder with what each step would meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stanch.core.fleet import Fleet, Unit
from stanch.core.history import Ending, History, Incident, Step
from stanch.core.plan_limits import Limits, Mode
from stanch.core.plan_types import Action, Plan, Reason, Verb
from stanch.core.planner import plan
from stanch.core.verdict import State, Verdict

SCHEMA = "stanch.plan/1"


@dataclass(frozen=True, slots=True)
class Forecast:
    """One unit. incident: the open one, "" where it would be opened now or nothing is. steps: those that were
    done, then those that would be. next: what is done in this very turn. reason: why nothing is, "" where
    something is; message: as a sentence, also of what would be the end."""

    unit: str
    incident: str = ""
    signature: str = ""
    steps: tuple[Step, ...] = ()
    next: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


def questions(
    fleet: Fleet, verdicts: Sequence[Verdict], history: History, limits: Limits, now: float
) -> list[Action]:
    """What the planner would ask engines first; asking does nothing to them."""
    found: dict[str, Action] = {}
    for made in _plans(fleet, verdicts, history, limits, now):
        found |= {one.key: one for one in made.actions if one.verb is Verb.ASK}
    return list(found.values())


def forecast(
    fleet: Fleet, verdicts: Sequence[Verdict], history: History, limits: Limits, now: float
) -> tuple[Forecast, ...]:
    """history: with what the engines said when they were asked. Open incidents first, then what is new, the
    worst first, then what waits; a unit comes once."""
    real, dry = _plans(fleet, verdicts, history, limits, now)
    found: dict[str, Forecast] = {}
    later = {one.name: one for one in real.incidents}
    for incident in sorted((one for one in history.incidents if one.open), key=lambda one: one.created):
        after = later.get(incident.name, incident)
        found[after.unit or after.pod_name] = _open(after, real)
    for incident in dry.incidents:
        if incident.ending is Ending.WOULD_DO and incident.unit not in found:
            found[incident.unit] = Forecast(
                incident.unit, "", _signature(incident), incident.steps, message=incident.detail
            )
    for one in (*real.deferred, *dry.deferred):
        if one.unit not in found:
            found[one.unit] = Forecast(one.unit, reason=one.reason.value, message=one.message)
    for unit in fleet.units:
        if unit.key not in found and (why := _unread(unit, verdicts)) is not None:
            found[unit.key] = Forecast(unit.key, reason=Reason.BLIND.value, message=why)
    return tuple(found.values())


def _unread(unit: Unit, verdicts: Sequence[Verdict]) -> str | None:
    """Why nothing can be told of the unit, which the planner passes over: nothing is known against it."""
    read = [verdict for verdict in verdicts if verdict.engine in unit.engines]
    blind = [verdict for verdict in read if verdict.state is State.BLIND]
    if blind:
        return f"cannot tell about {blind[0].engine}: {blind[0].cause}"
    return None if read else "none of its engines was read"


def _plans(
    fleet: Fleet, verdicts: Sequence[Verdict], history: History, limits: Limits, now: float
) -> tuple[Plan, Plan]:
    """The plan, and the dry run of what has no incident. What an earlier dry run has said is said again."""
    real = plan(fleet, verdicts, history, limits, now)
    if limits.mode is Mode.DISABLED:
        return real, real
    again = [one for one in history.incidents if not one.open and one.ending is not Ending.WOULD_DO]
    dry = plan(
        fleet, verdicts, replace(history, incidents=tuple(again)), replace(limits, mode=Mode.OBSERVE), now
    )
    return real, dry


def _open(incident: Incident, made: Plan) -> Forecast:
    waits = [one for one in made.deferred if one.incident == incident.name]
    return Forecast(
        incident.unit or incident.pod_name,
        incident.name,
        _signature(incident),
        incident.steps,
        tuple(one.verb.value for one in made.actions if one.incident == incident.name),
        waits[-1].reason.value if waits else "",
        incident.detail or (waits[-1].message if waits else ""),
    )


def _signature(incident: Incident) -> str:
    signature = incident.evidence.signature
    return "" if signature is None else signature.value


def record(
    namespace: str, watch: str, mode: str, engines: int, found: Iterable[Forecast]
) -> dict[str, object]:
    """One object of schema stanch.plan/1."""
    return {
        "schema": SCHEMA,
        "namespace": namespace,
        "watch": watch,
        "mode": mode,
        "engines": engines,
        "units": [
            {
                "unit": one.unit,
                "incident": one.incident or None,
                "signature": one.signature or None,
                "steps": [
                    {
                        "name": step.name.value,
                        "outcome": None if step.outcome is None else step.outcome.value,
                        "detail": step.detail,
                    }
                    for step in one.steps
                ],
                "next": list(one.next),
                "reason": one.reason or None,
                "message": one.message,
            }
            for one in found
        ],
    }


def lines(found: Sequence[Forecast], engines: int) -> list[str]:
    """For people."""
    if not found:
        return [f"nothing to do: {engines} engine{'' if engines == 1 else 's'} read, and none shows anything"]
    said = []
    for one in found:
        head = f"{one.unit}: {one.signature}" if one.signature else one.unit
        head += f" (incident {one.incident})" if one.incident else ""
        why = f"{one.reason}: {one.message}" if one.reason else one.message
        said.append(f"{head}: {why}" if why else head)
        for step in one.steps:
            outcome = "under way" if step.outcome is None else step.outcome.value
            said.append(f"  {step.name.value:<9} {outcome}{f': {step.detail}' if step.detail else ''}")
        if one.next:
            said.append(f"  now: {', '.join(one.next)}")
    return said
