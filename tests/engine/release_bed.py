"""Engines that take releases by POST, and what the tests of releases do with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stanch_connector import contract
from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.chaos_bed import Fitted
from tests.engine.client import Pending, pd_request
from tests.engine.kit import MIDDLEWARE, ask, kit_path
from tests.engine.marks import MUTE
from tests.engine.model import words
from tests.engine.weights import NEEDS

TOKEN = "a-token-of-this-test"
# Ten full blocks.
TOKENS = 320


def with_kit(bed: Bed, spec: Spec) -> Fitted:
    """The spec's engine with weights that matter, the kit, and a token."""
    token = bed.directory / "token"
    token.write_text(TOKEN)
    fitted = replace(
        spec,
        extra_args=(*NEEDS, *MIDDLEWARE, *spec.extra_args),
        python_path=kit_path(bed.directory / "kit"),
    )
    return Fitted(bed, fitted, {contract.ENV_TOKEN_FILE: str(token)})


@dataclass
class Pair:
    prefill: Engine
    decode: Engine
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    shut_down: bool = False

    def request(self, seed: int, mark: str = "plain-") -> tuple[str, Pending]:
        """(the id of its response, the request)"""
        number = next(self.numbers)
        prompt = words(TOKENS, seed=seed)
        pending = pd_request(self.prefill.url, self.decode.url, prompt, 8, mark=mark, number=number)
        return f"cmpl-{mark}{number}", pending

    def tokens(self, seed: int) -> str:
        return text(self.request(seed)[1])

    def command(self, args: Mapping[str, Any], engine: Engine | None = None) -> dict[str, Any]:
        """Post a release and wait for its outcome."""
        target = engine or self.decode
        name = f"release-{next(self.numbers)}"
        body = {"id": name, "verb": "release", "args": args, "deadlineSeconds": 30}
        body["bootId"] = ask(target, "state").body["bootId"]
        post(target, body)
        outcome: dict[str, Any] = {}

        def ended() -> bool:
            found = [one for one in ask(target, "state").body["outcomes"] if one["id"] == name]
            # With several API servers the one that answers may not have heard of it yet.
            outcome.update(found[0] if found else {})
            return bool(outcome) and outcome["state"] not in ("accepted", "running")

        until(ended, f"{name} has ended")
        return outcome

    def scheduler_ids(self, ids: list[str]) -> list[str]:
        listed = {one["id"]: one["schedulerId"] for one in ask(self.decode).entries()}
        return [listed[one] for one in ids]

    def orphan(self, seed: int, mark: str = MUTE) -> str:
        """The id of a stuck request whose client has gone."""
        name, pending = self.request(seed, mark)
        until(lambda: name in {one["id"] for one in ask(self.decode).stuck()}, "it is parked")
        pending.give_up()
        self.parked([name])
        return name

    def parked(self, ids: list[str]) -> None:
        """Wait until they are in the list as stuck, and every rank has said how far they are."""

        def known() -> bool:
            stuck = {one["id"]: one for one in ask(self.decode).stuck()}
            return all(one in stuck and stuck[one]["refusalKind"] != "not-said" for one in ids)

        until(known, "they are stuck, and the rank has spoken")


def post(engine: Engine, body: Mapping[str, Any], token: str = TOKEN) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return Pending(engine.url, contract.ROUTE_COMMAND, body, headers, 30).answer(30)


def text(pending: Pending, deadline_s: float = 60) -> str:
    answer = pending.answer(deadline_s)
    assert answer.status == 200, answer.body
    found: str = answer.body["choices"][0]["text"]
    return found
