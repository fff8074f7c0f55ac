"""From the pages of one target to samples: which engines it has, what they are called, and who is missing.

A Reader remembers the engines that it has seen: an engine whose page is missing is blind, not gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from stanch.core.sample import Lifecycle, Role, Sample
from stanch.edge.exposition import MAX_ENGINES, EngineReading, Page, read

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Naming:
    """How the engines of one target are called.

    name: the target's name, or in a replay the file's stem ("" for the only file). alone: what the only
    engine of a target is called, None for its label. unknown: what stands for them before any was seen.
    """

    name: str
    alone: str | None
    unknown: str

    def of(self, key: _Key, *, several: bool, models: bool) -> str:
        """The engine's name; several, models: whether the target ever had several engines or models."""
        if self.alone is not None and not several:
            return self.alone
        model, engine = key
        parts = [self.name] if self.name else []
        if models:
            parts.append(_shown(model))
        return "/".join([*parts, _shown(engine) or "0"])


def _shown(label: str) -> str:
    """A label as part of a name: what a terminal might obey is escaped."""
    return label if label.isprintable() else label.encode("unicode_escape").decode()


class Reader:
    """The samples of one target's pages. Make it with `live` or `replay`.

    page: the last page that was read, None before the first. Names are sticky: an engine that was called
    NAME/LABEL because it had neighbours keeps that name when they are gone.
    """

    def __init__(self, naming: Naming) -> None:
        self.page: Page | None = None
        self._naming = naming
        self._seen: dict[_Key, float | None] = {}  # -> tokens so far, to notice a restart
        self._start: float | None = None
        self._several = False
        self._models = False

    @classmethod
    def live(cls, name: str) -> Reader:
        """NAME for the only engine of a page, NAME/LABEL for one of several, NAME/MODEL/LABEL with models."""
        return cls(Naming(name, alone=name, unknown=name))

    @classmethod
    def replay(cls, stem: str | None = None) -> Reader:
        """The label of the engine ("?" before any was seen), after STEM/ where there are several files."""
        return cls(Naming(stem or "", alone=None, unknown=f"{stem}/?" if stem else "?"))

    def read(self, t: float, body: bytes | None, error: str | None = None) -> tuple[Sample, ...]:
        """One sample of each engine at t (seconds); body None: the page is missing, and error says why."""
        return self.take(t, Page(problem=error or "there is no page") if body is None else read(body))

    def take(self, t: float, page: Page) -> tuple[Sample, ...]:
        """One sample of each engine at t: those of the page, then those that were seen and are missing."""
        self.page = page
        if page.problem is not None:
            return self._blind(t, page.problem)
        if self._restarted(page):
            self._seen.clear()
        present = {(engine.model, engine.engine): engine for engine in page.engines}
        for key, engine in present.items():
            self._seen[key] = _tokens(engine)
        if len(self._seen) > MAX_ENGINES:
            self._seen = {key: self._seen[key] for key in present}
        self._start = self._start if page.process_start is None else page.process_start
        self._several = self._several or len(self._seen) > 1
        self._models = self._models or len({model for model, _ in self._seen}) > 1
        return tuple(
            _sample(t, self._name(key), present[key], page.process_start)
            if key in present
            else Sample(t, self._name(key), blind=f"the page no longer has this engine (label {key[1]!r})")
            for key in self._seen
        )

    def _blind(self, t: float, reason: str) -> tuple[Sample, ...]:
        names = [self._name(key) for key in self._seen] or [self._naming.unknown]
        return tuple(Sample(t, name, blind=reason) for name in names)

    def _name(self, key: _Key) -> str:
        return self._naming.of(key, several=self._several, models=self._models)

    def _restarted(self, page: Page) -> bool:
        """Whether the page is of another process than the last one, whose engines are then forgotten.

        Where the process does not say when it started (multi-process mode, Ray), a counter that fell tells,
        or a page on which nobody is known.
        """
        if page.process_start is not None and self._start is not None:
            return page.process_start != self._start
        known = [(self._seen.get((e.model, e.engine), _NEVER), _tokens(e)) for e in page.engines]
        if all(before is _NEVER for before, _ in known):
            return True
        return any(isinstance(b, float) and now is not None and now < b for b, now in known)


_NEVER = object()


def _tokens(engine: EngineReading) -> float | None:
    counters = (engine.generation_tokens, engine.prompt_tokens)
    known = [float(counter) for counter in counters if counter is not None]
    return sum(known) if known else None


def _sample(t: float, name: str, engine: EngineReading, process_start: float | None) -> Sample:
    if engine.problem is not None:
        return Sample(t, name, blind=engine.problem)
    return Sample(
        t,
        name,
        usage=engine.usage,
        running=engine.running,
        waiting=engine.waiting,
        waiting_deferred=engine.waiting_deferred,
        generation_tokens=engine.generation_tokens,
        prompt_tokens=engine.prompt_tokens,
        iterations=engine.iterations,
        finished=engine.finished,
        failed_transfers=engine.failed_transfers,
        failed_notifications=engine.failed_notifications,
        process_start=process_start,
        lifecycle=_lifecycle(engine),
    )


def _lifecycle(engine: EngineReading) -> Lifecycle | None:
    """Asleep or paused by vllm:engine_sleep_state (0.11.1 .. 0.33); awake 1 may be wrong, 0 is not."""
    if engine.awake != 0:
        return None
    # Level 0 pauses the scheduler and keeps weights and cache.
    return Lifecycle.PAUSED if engine.offloaded == 0 and engine.discarded == 0 else Lifecycle.ASLEEP


# So many finished requests of more than one token make a decode, so many of one token each a prefill: fewer
# may be somebody's trial.
DECODE_LEAST_REQUESTS = 5
PREFILL_LEAST_REQUESTS = 20


def role_evidence(page: Page) -> Role | None:
    """DECODE or PREFILL where the metrics of this page truly tell, else None (ask the user).

    The page must have been asked for with its evidence (names_to_ask(evidence=True), or a whole page).
    Counters count from the process start, so a young engine tells nothing. All engines must agree.
    """
    roles = {_role(engine) for engine in page.engines}
    return roles.pop() if len(roles) == 1 else None


def _role(engine: EngineReading) -> Role | None:
    if engine.failed_transfers is None:
        return None  # no NIXL connector (or vLLM before 0.11.1): nothing here is about prefill and decode
    if engine.since_032 is not None and engine.consumer is None:
        return Role.PREFILL  # kv_role is kv_producer: a consumer has the family from its start
    if engine.external_hits is None or engine.asked is None or engine.asked_one_token is None:
        return None
    more_than_one = engine.asked - engine.asked_one_token
    if engine.external_hits > 0:
        # With one token each it may be a prefill that reads from its decodes (bidirectional mode).
        return Role.DECODE if more_than_one >= DECODE_LEAST_REQUESTS else None
    if more_than_one == 0 and (engine.asked >= PREFILL_LEAST_REQUESTS or (engine.expired_leases or 0) > 0):
        return Role.PREFILL
    return None
