"""What becomes of an engine's state when it is asked about its verdict, and when it has answered. Pure."""

from __future__ import annotations

from dataclasses import replace

from stanch.core.detector import EngineState
from stanch.core.phases import Event, advance
from stanch.core.signatures import NO_FLOOR, canary_cost
from stanch.core.verdict import Answer, Signature, State, Verdict

_EVENT_OF = {
    Answer.CONFIRMED: Event.CONFIRM,
    Answer.VETOED: Event.VETO,
    Answer.INCONCLUSIVE: Event.UNDECIDED,
}


def ask(state: EngineState, generation_tokens: float, prompt_tokens: float) -> EngineState:
    """Before or after a canary: the tokens that it adds to the engine's counters are not progress."""
    return replace(state, owed=canary_cost(generation_tokens, prompt_tokens))


def answer(
    state: EngineState, confirmation: Answer, cause: str, *, restart_hold: bool = False
) -> tuple[EngineState, Verdict]:
    """Enter what the engine said when it was asked about its last verdict.

    A veto makes it healthy (StaleGauge) and restarts the hold; `restart_hold` does that for an answer that
    leaves the state. Raises IllegalTransitionError where there is no suspicion to answer.
    """
    phase = advance(state.phase, _EVENT_OF[confirmation])
    assert state.verdict is not None
    verdict = replace(state.verdict, confirmation=confirmation, cause=cause)
    if confirmation is Answer.VETOED:
        verdict = replace(
            verdict, state=State.HEALTHY, signature=Signature.STALE_GAUGE, held_seconds=0.0, cap=None
        )
    if confirmation is Answer.VETOED or restart_hold:
        state = replace(state, holding=None, held=0.0, floor=NO_FLOOR, unanswered_t=None)
    return replace(state, phase=phase, verdict=verdict), verdict
