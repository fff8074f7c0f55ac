"""Short hand for tests of the core: samples and the verdicts of a sequence of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stanch.core.detector import EngineState, step
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.verdict import Verdict

POLICY = Policy()


def sample(
    t: float, usage: float | None = 0.0, running: float | None = 0, waiting: float | None = 0, **more: Any
) -> Sample:
    """A fit reading of an engine that does nothing, with what differs."""
    values: dict[str, Any] = {
        "waiting_deferred": 0.0,
        "generation_tokens": 1000.0,
        "prompt_tokens": 5000.0,
        "iterations": 900.0,
        "finished": 10.0,
        "process_start": 1.0,
    }
    values.update(more)
    return Sample(t=t, engine="decode-3", usage=usage, running=running, waiting=waiting, **values)


def every(seconds: float, start: float, end: float, *args: Any, **more: Any) -> list[Sample]:
    """The same reading every so many seconds, from start to end, both included."""
    count = int((end - start) / seconds) + 1
    return [sample(start + i * seconds, *args, **more) for i in range(count)]


def run(
    samples: Iterable[Sample],
    policy: Policy = POLICY,
    role: Role = Role.DECODE,
    quiet: float | None = None,
    state: EngineState | None = None,
) -> tuple[EngineState, list[Verdict]]:
    state = state or EngineState()
    verdicts = []
    for one in samples:
        state, verdict = step(state, one, policy, role, quiet)
        verdicts.append(verdict)
    return state, verdicts


def last(
    samples: Iterable[Sample], policy: Policy = POLICY, role: Role = Role.DECODE, quiet: float | None = None
) -> Verdict:
    return run(samples, policy, role, quiet)[1][-1]
