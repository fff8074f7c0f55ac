"""One turn of the planner while it is being made: the facts in handy form, and what is decided so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stanch.core.fleet import CommandOutcome, Fleet, Pod, Unit
from stanch.core.history import Confirmation, History, Incident, Ledger, Outcome, StepName, Stuck
from stanch.core.plan_limits import ASK_AGAIN_SECONDS, CORDON_LEASE_SECONDS, CORDON_RENEW_SECONDS, Limits
from stanch.core.plan_types import Action, Deferral, Precondition, Reason, Verb
from stanch.core.verdict import Answer, Signature, State, Verdict

# A restart that we ordered blinds its engine, and that is no sign of a blind fleet.
_OURS = (StepName.RESTART, StepName.VERIFY, StepName.UNCORDON)


class Scene:
    """Made anew for every plan and forgotten after it; everything it holds of the world is frozen."""

    def __init__(
        self,
        fleet: Fleet,
        verdicts: Iterable[Verdict],
        history: History,
        limits: Limits,
        now: float,
        ledger: Ledger,
    ) -> None:
        self.fleet, self.limits, self.now, self.ledger = fleet, limits, now, ledger
        self.verdicts: Mapping[str, Verdict] = {verdict.engine: verdict for verdict in verdicts}
        self.history = history
        self.units: Mapping[str, Unit] = {unit.key: unit for unit in fleet.units}
        self.past: dict[str, list[Incident]] = {}  # incidents by unit
        for incident in history.incidents:
            self.past.setdefault(incident.unit, []).append(incident)
        self._frozen: dict[str, bool] = {}
        # A copied id (one that is fixed in the arguments of several) names nobody.
        owners = Counter(own for unit in fleet.units for own in unit.transfer_ids)
        self._by_transfer_id = {
            own: unit.key for unit in fleet.units for own in unit.transfer_ids if owners[own] == 1
        }
        self.outcomes: Mapping[str, Outcome] = {o.key: o for o in sorted(history.outcomes, key=lambda o: o.t)}
        self.at_work: Mapping[str, Incident] = {i.unit: i for i in history.incidents if i.open and i.steps}
        self.blind_fleet = self._blind_fleet()
        self.actions: list[Action] = []
        self.deferred: list[Deferral] = []
        self.reserved: set[str] = set()  # units that will be claimed as soon as they have confirmed
        self.arm: set[str] = set()

    def _blind_fleet(self) -> bool:
        ours = {
            engine
            for unit in self.fleet.units
            if (incident := self.at_work.get(unit.key)) is not None
            and incident.current is not None
            and incident.current.name in _OURS
            for engine in unit.engines
        }
        read = [verdict for engine, verdict in self.verdicts.items() if engine not in ours]
        return sum(verdict.state is State.BLIND for verdict in read) * 2 > len(read)

    def of(self, unit: Unit) -> list[Verdict]:
        return [self.verdicts[engine] for engine in unit.engines if engine in self.verdicts]

    def worst(self, unit: Unit) -> Verdict | None:
        """The verdict that speaks loudest: a fault before a suspect, the fullest of them."""
        order = (State.FAULT, State.SUSPECT, State.BLIND, State.HEALTHY)
        verdicts = self.of(unit)
        return min(verdicts, key=lambda v: (order.index(v.state), -(v.usage or 0.0)), default=None)

    def blind(self, unit: Unit) -> Verdict | None:
        """A verdict that is blind, or the news that there is none at all."""
        return next((verdict for verdict in self.of(unit) if verdict.state is State.BLIND), None)

    def faults(self, unit: Unit) -> tuple[str, ...]:
        return tuple(verdict.engine for verdict in self.of(unit) if verdict.state is State.FAULT)

    def answers(self, unit: Unit, engines: Iterable[str], after: float) -> list[Confirmation]:
        """What these engines said of this container run, not before `after`; the newest of each."""
        runs = {pod.container_id for pod in unit.pods}
        newest: dict[str, Confirmation] = {}
        for said in self.history.confirmations:
            if said.container_id in runs and said.t >= after:
                known = newest.get(said.engine)
                newest[said.engine] = said if known is None or said.t >= known.t else known
        return [newest[engine] for engine in engines if engine in newest]

    def heard(
        self, unit: Unit, engines: tuple[str, ...], after: float
    ) -> tuple[Answer | None, list[Confirmation]]:
        """The unit's answer, from those of its engines; None: they are to be asked (again).

        A yes and a no count for one interval; what proves nothing keeps from asking for a while.
        """
        said = self.answers(unit, engines, after)
        fresh = [one for one in said if self.now - one.t <= self.limits.interval_seconds]
        if any(one.answer is Answer.CONFIRMED for one in fresh):
            return Answer.CONFIRMED, fresh
        if len(fresh) == len(engines) and all(one.answer is Answer.VETOED for one in fresh):
            return Answer.VETOED, fresh
        undecided = [
            one for one in said if one.answer is Answer.INCONCLUSIVE and self.now - one.t < ASK_AGAIN_SECONDS
        ]
        return (Answer.INCONCLUSIVE, undecided) if undecided else (None, [])

    def undecided_since(self, unit: Unit, engines: tuple[str, ...], after: float) -> float | None:
        """Since when the unit has been asked in vain, not before `after`; None: no answer, or a clear one.

        Asked again after a long pause, in which something else was in the way, it begins anew."""
        runs = {pod.container_id for pod in unit.pods}
        since = last = None
        for said in sorted(self.history.confirmations, key=lambda one: one.t):
            if said.engine not in engines or said.container_id not in runs or said.t < after:
                continue
            if said.answer is not Answer.INCONCLUSIVE:
                since = None if said.answer is Answer.CONFIRMED else since
                continue
            paused = last is not None and said.t - last > 3 * ASK_AGAIN_SECONDS
            since, last = said.t if since is None or paused else since, said.t
        return since

    def frozen(self, key: str) -> bool:
        """Whether that unit cannot answer a transfer now, yet may come back by itself or by our repair."""
        if key not in self._frozen:
            unit = self.units.get(key)
            self._frozen[key] = unit is not None and self._is_frozen(unit)
        return self._frozen[key]

    def _is_frozen(self, unit: Unit) -> bool:
        stuck = any(
            verdict.state is State.BLIND
            or (verdict.state is State.FAULT and verdict.signature is Signature.NO_PROGRESS)
            for verdict in self.of(unit)
        )
        return stuck or not unit.available

    def with_peers(self, listed: Iterable[Stuck], before: Iterable[Stuck]) -> tuple[Stuck, ...]:
        """The listed requests with the unit that each pulls from, where an engine there has said its id, or
        had when the list was made before: a peer that restarts has another."""
        known = {one.id: one.peer for one in before}
        return tuple(
            replace(one, peer=self._by_transfer_id.get(one.remote_engine or "", known.get(one.id)))
            for one in listed
        )

    def live_peers(self, unit: Unit) -> tuple[str, ...]:
        return tuple(key for key in unit.peers if key in self.units and not self.frozen(key))

    def wait(
        self,
        unit: str,
        reason: Reason,
        message: str,
        incident: Incident | None = None,
        recheck: float | None = None,
    ) -> None:
        name = "" if incident is None else incident.name
        self.deferred.append(Deferral(unit, reason, message, name, recheck))

    def act(
        self,
        verb: Verb,
        incident: Incident | None,
        unit: Unit,
        key: str,
        *,
        engines: tuple[str, ...] = (),
        ids: tuple[str, ...] = (),
        beat: int = 0,
        deadline_seconds: float = 0.0,
        peers: tuple[str, ...] = (),
    ) -> None:
        lease = CORDON_LEASE_SECONDS if verb is Verb.CORDON else 0.0
        name = "" if incident is None else incident.name
        pods = preconditions(unit.pods, incident)
        self.actions.append(
            Action(verb, name, unit.key, key, pods, engines, ids, beat, lease, deadline_seconds, peers)
        )

    def keep_cordon(self, incident: Incident, unit: Unit) -> None:
        """Renew the cordon where it is due; the beat is the second of its renewal."""
        beat = int(self.now)
        marks = [pod.cordon for pod in unit.pods]
        due = any(
            mark is None or mark.incident != incident.name or self.now - mark.beat >= CORDON_RENEW_SECONDS
            for mark in marks
        )
        if due:
            self.act(Verb.CORDON, incident, unit, f"{incident.name}/cordon", beat=beat)

    def cordon_lives(self, incident: Incident, unit: Unit) -> bool:
        return all(pod.cordon_lives(incident.name, self.now, CORDON_LEASE_SECONDS) for pod in unit.pods)


def boot_id(pod: Pod, incident: Incident | None) -> str | None:
    """What a command to this pod must name; the one remembered where the kit is silent just now."""
    if pod.kit is not None:
        return pod.kit.boot_id
    return None if incident is None else incident.boot_id


def preconditions(pods: Iterable[Pod], incident: Incident | None) -> tuple[Precondition, ...]:
    return tuple(
        Precondition(pod.name, pod.uid, pod.container_id, boot_id(pod, incident), pod.version) for pod in pods
    )


def told(unit: Unit, command: str) -> CommandOutcome | None:
    """What the kits say of a command; the one that is furthest behind where there are several pods."""
    said = [None if pod.kit is None else pod.kit.outcomes.get(command) for pod in unit.pods]
    if None in said:
        return None
    outcomes = [one for one in said if one is not None]
    return next((one for one in outcomes if one.open), None) or next(
        (one for one in outcomes if one.state != "done"), outcomes[0]
    )


def another_run(unit: Unit, incident: Incident) -> bool:
    """Whether another process runs than the one the incident is about."""
    pod = unit.lead
    if pod.uid != incident.pod_uid:
        return True
    if pod.container_id is not None and pod.container_id != incident.container_id:
        return True
    return pod.kit is not None and incident.boot_id is not None and pod.kit.boot_id != incident.boot_id
