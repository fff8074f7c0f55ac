"""A small cluster that carries plans out: pods with a kit, leaks, restarts, evictions, and what may go wrong.

It is the executor that docs of Plan describe, over a picture of the API server and of the engines; every
answer can be replaced, and the process that plans can be killed between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stanch.core.fleet import Capability, CommandOutcome, CordonMark, Fleet, Kit, Pod, Unit, Way
from stanch.core.history import Confirmation, History, Incident, Ledger, Outcome, Result, Stuck
from stanch.core.plan_limits import CORDON_LEASE_SECONDS, Limits, Mode
from stanch.core.plan_types import Action, Plan, Verb
from stanch.core.planner import plan, sweep
from stanch.core.sample import Lifecycle, Role
from stanch.core.verdict import Answer, Signature, State, Verdict

ENFORCE = Limits(mode=Mode.ENFORCE)
START = 1_000_000.0


class KilledError(Exception):
    """The planning process ends here; what was written stays."""


@dataclass
class Sim:
    """One unit of one pod. leak: share of the cache that is stuck. hung: idle, and a canary has no answer.
    starts: seconds until it is healthy after an end. down_until: no container runs before; None: it never
    comes back."""

    key: str
    role: Role = Role.DECODE
    kit: bool = True
    readiness: bool = True
    way: Way = Way.IN_PLACE
    leak: float = 0.0
    hung: bool = False
    signature: Signature = Signature.HELD_IDLE
    held: float = 120.0
    releasable: bool = False
    running: float = 0.0
    peers: tuple[str, ...] = ()
    conflict: str | None = None
    not_remade: str = ""
    leaving: str | None = None
    blind: bool = False
    suspect: bool = False
    engines: tuple[str, ...] = ()
    starts: float = 20.0
    leaks_again: bool = False
    peer_of_stuck: str | None = None
    transfer_id: str = ""
    life: int = 1
    run: int = 1
    down_until: float | None = 0.0
    dead: bool = False
    terminating: bool = False
    not_ready: bool = False
    cordon: CordonMark | None = None
    lock: str | None = None
    command: str | None = None
    draining: bool = False
    outcomes: dict[str, CommandOutcome] = field(default_factory=dict)

    @property
    def shows(self) -> Signature:
        return Signature.NO_PROGRESS if self.hung else self.signature

    @property
    def uid(self) -> str:
        return f"uid-{self.key}-{self.life}"

    def container(self, now: float) -> str | None:
        return f"c{self.life}.{self.run}" if self.up(now) or self.down_until is None else None

    def up(self, now: float) -> bool:
        return not self.dead and (self.down_until is not None and now >= self.down_until)


_GOOD: Any = object()
Say = Callable[[Action, "World"], Any]


@dataclass
class World:
    """turn() is one turn of the product: facts, plan, ledger, incidents, actions, outcomes.

    say: answers by verb in place of the good ones; None from it leaves the action without any effect.
    routed: whether a cordon shows in the endpoints. kill: called before every effect with its name.
    """

    units: dict[str, Sim]
    limits: Limits = ENFORCE
    say: dict[Verb, Say] = field(default_factory=dict)
    now: float = START
    ledger: Ledger = field(default_factory=Ledger)
    incidents: dict[str, Incident] = field(default_factory=dict)
    confirmations: list[Confirmation] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    cordon_works: bool = True
    # A cordon ends by the kit's clock, which began when the kit saw the beat: that much later.
    kit_lag: float = 0.0
    stop: str | None = None
    reset: str | None = None
    desired: dict[Role, int] = field(default_factory=dict)
    log: list[tuple[Verb, str]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    check: Callable[[Fleet, list[Verdict], History, Plan, float], None] | None = None
    kill: Callable[[str], None] = lambda _: None
    kills: int = 0

    def facts(self) -> Fleet:
        return Fleet(
            tuple(self._unit(sim) for sim in self.units.values()),
            self.now,
            dict(self.desired),
            self.stop,
            self.reset,
        )

    def _unit(self, sim: Sim) -> Unit:
        now = self.now
        up = sim.up(now)
        fresh = sim.cordon is not None and now - sim.cordon.beat <= CORDON_LEASE_SECONDS + self.kit_lag
        held = sim.cordon.incident if sim.kit and fresh and sim.cordon is not None else None
        out = held is not None and sim.readiness
        ready = up and not out and not sim.not_ready and not sim.terminating
        kit = Kit(f"boot-{sim.life}.{sim.run}", held, sim.draining, dict(sim.outcomes)) if sim.kit else None
        pod = Pod(
            sim.key,
            sim.uid,
            sim.container(now),
            ready,
            up,
            sim.terminating,
            sim.leaving,
            not (out and self.cordon_works) and up,
            not (out and self.cordon_works) and up and sim.running > 0,
            sim.running if up else None,
            sim.lock,
            sim.cordon,
            sim.command,
            Capability.READINESS if sim.readiness and sim.kit else Capability.NONE,
            kit if up else None,
            "1",
        )
        engines = sim.engines or (sim.key,)
        return Unit(
            sim.key,
            sim.role,
            (pod,),
            engines,
            "d",
            sim.way,
            not_remade=sim.not_remade,
            transfer_ids=(sim.transfer_id or f"id-{sim.key}",),
            peers=sim.peers,
            conflict=sim.conflict,
        )

    def verdicts(self) -> list[Verdict]:
        return [v for sim in self.units.values() for v in self._verdicts(sim)]

    def _verdicts(self, sim: Sim) -> list[Verdict]:
        names = sim.engines or (sim.key,)
        blank = [Verdict(self.now, name, sim.role, State.HEALTHY, usage=0.01) for name in names]
        if sim.blind or not sim.up(self.now):
            return [replace(v, state=State.BLIND, usage=None, cause="refused") for v in blank]
        if not sim.leak and not sim.hung:
            return blank
        if sim.draining:
            return [replace(v, usage=sim.leak, lifecycle=Lifecycle.DRAINING) for v in blank]
        state = State.SUSPECT if sim.suspect else State.FAULT
        return [
            replace(
                v,
                state=state,
                signature=sim.shows,
                usage=sim.leak,
                held_seconds=sim.held,
                limit_seconds=60.0,
            )
            for v in blank
        ]

    def stuck(self, sim: Sim) -> tuple[Stuck, ...]:
        if not sim.leak:
            return ()
        refusal = None if sim.releasable else "a read is under way"
        remote = None if sim.peer_of_stuck is None else f"id-{sim.peer_of_stuck}"
        return (Stuck(f"cmpl-{sim.key}", 300.0, 10, True, sim.releasable, refusal, remote),)

    def turn(self) -> Plan:
        """One turn. A kill inside it loses what this process was told, and nothing that was written."""
        for sim in self.units.values():
            # The kit's drain ends with the cordon's lease.
            if sim.cordon is None or self.now - sim.cordon.beat > CORDON_LEASE_SECONDS:
                sim.draining = False
            if sim.running and sim.draining:
                sim.running = 0
        fleet, verdicts = self.facts(), self.verdicts()
        ledger = replace(self.ledger, read_at=self.now)
        history = History(
            tuple(self.incidents.values()), ledger, tuple(self.confirmations), tuple(self.outcomes)
        )
        made = plan(fleet, verdicts, history, self.limits, self.now)
        if self.check is not None:
            self.check(fleet, verdicts, history, made, self.now)
        self.plans.append(made)
        try:
            self._carry_out(made)
        except KilledError:
            self.kills += 1
            self.confirmations, self.outcomes = [], []
        return made

    def _carry_out(self, made: Plan) -> None:
        if made.ledger is not None:
            self.kill("ledger")
            self.ledger = made.ledger
            self.kill("ledger written")
        for incident in made.incidents:
            self.kill(f"incident {incident.name}")
            self.incidents[incident.name] = replace(incident, version="1")
            self.kill(f"incident {incident.name} written")
        for action in made.actions:
            self.kill(f"{action.verb.value} {action.unit}")
            self._do(action)
            self.kill(f"{action.verb.value} {action.unit} done")
        for action in sweep(self.facts(), [i.name for i in self.incidents.values() if i.open]):
            self.kill(f"sweep {action.unit}")
            self._do(action)

    def run(self, turns: int, seconds: float = 5.0) -> World:
        for _ in range(turns):
            self.turn()
            self.now += seconds
        return self

    def _do(self, action: Action) -> None:
        self.log.append((action.verb, action.unit))
        sim = self.units.get(action.unit)
        if sim is None:
            return
        given = self.say[action.verb](action, self) if action.verb in self.say else _GOOD
        if given is None:
            return
        now_is = self._unit(sim).pods[0]
        needs = action.pods[0]
        if now_is.uid != needs.uid or (needs.container_id != now_is.container_id):
            return
        if action.verb is Verb.ASK:
            self._ask(action, sim, given)
        elif action.verb in (Verb.TRY_EVICT, Verb.CAPTURE, Verb.VERIFY, Verb.EVICT):
            result, detail = (Result.OK, "") if given is _GOOD else given
            if action.verb is not Verb.EVICT or result is not Result.OK:
                self.outcomes.append(Outcome(action.key, self.now, result, detail))
            else:
                self._replace(sim)
        elif action.verb is Verb.LIFT:
            if sim.lock in (None, action.incident):
                sim.cordon = sim.lock = sim.command = None
                sim.draining = False
        elif action.verb is Verb.CORDON:
            sim.cordon, sim.lock = CordonMark(action.incident, action.beat), action.incident
        else:
            sim.lock, sim.command = action.incident, action.key
            self._obey(action, sim, given)

    def _ask(self, action: Action, sim: Sim, given: Any) -> None:
        for engine in action.engines:
            answer = Answer.CONFIRMED if sim.leak or sim.hung else Answer.VETOED
            stuck = self.stuck(sim) if sim.kit else None
            if given is not _GOOD:
                answer = given
            if not sim.up(self.now):
                answer, stuck = Answer.INCONCLUSIVE, None
            run = sim.container(self.now)
            about = sim.shows if sim.leak or sim.hung else None
            self.confirmations.append(Confirmation(engine, self.now, answer, run, answer.value, stuck, about))

    def _obey(self, action: Action, sim: Sim, given: Any) -> None:
        if action.key in sim.outcomes:
            return
        state = "done" if given is _GOOD else given
        sim.outcomes[action.key] = CommandOutcome(state, "" if state == "done" else f"{state}, as told")
        if state != "done":
            return
        if action.verb is Verb.RELEASE:
            sim.leak = 0.0
        elif action.verb is Verb.DRAIN:
            sim.draining = True
        elif action.verb is Verb.RESTART:
            self.restart(sim)

    def restart(self, sim: Sim) -> None:
        """The container ends; what starts after it is another run."""
        sim.run += 1
        sim.draining, sim.outcomes = False, {}
        sim.leak = sim.leak if sim.leaks_again else 0.0
        sim.hung = False
        sim.down_until = None if sim.starts < 0 else self.now + sim.starts

    def _replace(self, sim: Sim) -> None:
        """A Deployment makes another pod under another name."""
        del self.units[sim.key]
        fresh = Sim(f"{sim.key}+", sim.role, sim.kit, sim.readiness, sim.way, peers=sim.peers)
        fresh.down_until = self.now + sim.starts
        self.units[fresh.key] = fresh

    # What tests look at

    def story(self, name: str | None = None) -> list[str]:
        """The steps of an incident (the only one where none is named), as name:outcome."""
        incident = self.incidents[name] if name is not None else self.only()
        return [
            f"{step.name.value}" + ("" if step.outcome is None else f":{step.outcome.value}")
            for step in incident.steps
        ]

    def only(self) -> Incident:
        assert len(self.incidents) == 1, list(self.incidents)
        return next(iter(self.incidents.values()))

    def reasons(self) -> set[str]:
        return {one.reason.value for made in self.plans for one in made.deferred}

    def acts(self) -> list[str]:
        """What was done, without repeats in a row and without questions."""
        words = [f"{verb.value} {unit}" for verb, unit in self.log if verb not in (Verb.ASK,)]
        return [word for at, word in enumerate(words) if at == 0 or words[at - 1] != word]
