"""The answers of the kit's routes, as (status, JSON). The middleware sends them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from stanch_connector import contract
from stanch_connector.apiserver import ask, facts, keys
from stanch_connector.apiserver.control import Control
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.seams import vllm_version

# /state must answer soon, also of an engine that hangs.
STATE_DEADLINE_SECONDS = 1.0

# Of an outcome: where ids of requests are.
IDS = ("released", "ways", "refused")

Answer = tuple[int, dict[str, Any]]


@dataclass(slots=True)
class Routes:
    """One API-server process's. app_state: Starlette's `app.state`, in which vLLM keeps args and
    engine_client."""

    boot_id: str
    control: Control
    guard: Guard
    ranks: ask.Ranks = field(default_factory=ask.Ranks)

    async def requests(self, app_state: Any, authorization: bytes | None) -> Answer:
        """contract.Requests; 401 without vLLM's key; 501 with a sentence where no list is to be had."""
        try:
            if not keys.allowed(authorization, keys.keys_of(app_state)):
                return 401, {"error": "Unauthorized"}
        except keys.UnknownKeysError as error:
            return 501, {"error": f"not served, since a key may be needed: {error}"}
        if self.guard.disabled is not None:
            return 501, {"error": f"no list: the kit turned itself off: {self.guard.disabled}"}
        try:
            said = await self.ranks.ask(engine_core_of(app_state), "requests")
        except ask.NoEngineError as error:
            return 501, {"error": str(error)}
        if said.failed and not said.answers:
            return 501, {"error": next(iter(said.failed.values())), "missingRanks": sorted(said.missing)}
        body: contract.Requests = {
            "schema": contract.SCHEMA_REQUESTS,
            "bootId": self.boot_id,
            "ranks": {str(rank): {"requests": reply["requests"]} for rank, reply in said.answers.items()},
            "missingRanks": sorted(said.missing),
        }
        return 200, dict(body)

    async def state(self, app_state: Any, authorization: bytes | None = None) -> Answer:
        """contract.KitState, always: what cannot be told is null or absent. The ids of requests in its
        outcomes are for whoever may have the list, or may command."""
        body: contract.KitState = {
            "schema": contract.SCHEMA_STATE,
            "contract": contract.CONTRACT_VERSION,
            "kit": kit_version(),
            "vllm": full_vllm_version(),
            "bootId": self.boot_id,
        }
        version = vllm_version()
        engine_client = getattr(app_state, "engine_client", None)
        config = getattr(app_state, "vllm_config", None) or getattr(engine_client, "vllm_config", None)
        body.update(facts.facts(config, version))
        try:
            body.update(self.control.state())
            if not self._may_see_ids(app_state, authorization):
                body["outcomes"] = [_without_ids(one) for one in body["outcomes"]]
        except Exception as error:
            self.guard.failed("control.state", error)
        else:
            self.guard.worked("control.state")
        body["ready"] = await self.why_not_ready(app_state) is None
        try:
            said = await self.ranks.ask(engine_core_of(app_state), "state", STATE_DEADLINE_SECONDS)
        except ask.NoEngineError as error:
            said = ask.Answers()
            body["disabled"] = str(error)
        # The gate counts its own failures.
        guards = [self.guard, getattr(self.control, "guard", None)]
        _merge(body, said, [one for one in guards if isinstance(one, Guard)])
        return 200, dict(body)

    def _may_see_ids(self, app_state: Any, authorization: bytes | None) -> bool:
        try:
            if keys.allowed(authorization, keys.keys_of(app_state)):
                return True
        except keys.UnknownKeysError:
            pass
        given = None if authorization is None else authorization.decode("latin-1")
        return given is not None and self.control.access(given) is None

    async def ready(self, app_state: Any) -> Answer:
        """200, or 503 with the reason."""
        reason = await self.why_not_ready(app_state)
        return (200, {"ready": True}) if reason is None else (503, {"ready": False, "reason": reason})

    async def why_not_ready(self, app_state: Any) -> str | None:
        """A cordon or the like first; then vLLM's own health, as its /health route asks it."""
        try:
            reason = self.control.not_ready() if self.guard.disabled is None else None
        except Exception as error:
            self.guard.failed("control.not_ready", error)
            reason = None
        else:
            self.guard.worked("control.not_ready")
        if reason is not None:
            return reason
        check = getattr(getattr(app_state, "engine_client", None), "check_health", None)
        if check is None:
            return None
        try:
            await check()
        except Exception as error:
            return f"vLLM says that it is not healthy: {type(error).__name__}"
        return None


def _without_ids(outcome: contract.Outcome) -> contract.Outcome:
    return cast("contract.Outcome", {key: value for key, value in outcome.items() if key not in IDS})


def engine_core_of(app_state: Any) -> Any:
    """vLLM's client of the engine cores. Raises NoEngineError."""
    client = getattr(getattr(app_state, "engine_client", None), "engine_core", None)
    if client is None:
        raise ask.NoEngineError("this server has no engine core")
    return client


def _merge(body: contract.KitState, said: ask.Answers, guards: list[Guard]) -> None:
    """All ranks' parts into one: the worst fix of them, errors added up, the first that is off."""
    errors: dict[str, int] = {}
    disabled = body.get("disabled")
    for guard in guards:
        disabled = disabled or guard.disabled
        for hook, count in guard.errors.items():
            errors[hook] = errors.get(hook, 0) + count
    worst = ("unpatched", "off", "active", "not-needed")
    fixes: list[tuple[int, str, str]] = []
    releases, refusals, hits = Counter[str](), Counter[str](), 0
    for rank, reply in said.answers.items():
        if isinstance(own := reply.get("engineId"), str):
            body.setdefault("engineIds", {})[str(rank)] = own
        releases.update(reply.get("releases", {}))
        refusals.update(reply.get("refusals", {}))
        hits += reply.get("fixHits", 0)
        for hook, count in reply.get("errors", {}).items():
            errors[hook] = errors.get(hook, 0) + count
        disabled = disabled or reply.get("disabled")
        if reply.get("fix") in worst:
            fixes.append((worst.index(reply["fix"]), reply["fix"], reply.get("fixReason", "")))
    for sentence in said.failed.values():
        disabled = disabled or sentence
    if fixes:
        _, fix, reason = min(fixes)
        body["fix"] = fix  # type: ignore[typeddict-item]
        body["fixReason"] = reason
    if said.answers:
        body["fixHits"], body["releases"], body["refusals"] = hits, dict(releases), dict(refusals)
    body["errors"] = errors
    body["disabled"] = disabled


def kit_version() -> str:
    """Of the installed distribution; "unknown" where the package lies on a path without one."""
    from importlib import metadata

    try:
        return metadata.version("stanch")
    except metadata.PackageNotFoundError:
        return "unknown"


def full_vllm_version() -> str:
    """As vLLM's /version has it."""
    try:
        from vllm.version import __version__
    except ImportError:
        return "unknown"
    return str(__version__)
