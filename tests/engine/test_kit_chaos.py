"""The kit's own code is made to raise, function by function and hook by hook, in engines at work: they serve
on, and say the same tokens as before.

A point (chaos_inside.py) is a function of the kit or a hook under the guard's name. They are listed by the
engines themselves: what is called while a kind of work is done is made to raise, one point at a time, while
that work is done again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from stanch_connector import contract
from stanch_connector.engine.guard import FAILURES_IN_A_ROW
from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.chaos import VARIABLE, Chaos, chaos_path
from tests.engine.chaos_bed import Fitted, post, start
from tests.engine.client import NoAnswerError, complete, get, pd_request
from tests.engine.kit import MIDDLEWARE, ask
from tests.engine.marks import MUTE
from tests.engine.model import words
from tests.engine.pair import USAGE, WAITING
from tests.engine.weights import NEEDS, write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"
TOKEN = "0123456789abcdef"
# Twice in a row and more, and far from what turns the kit off.
TIMES = 3

# The net: what catches cannot catch itself. To raise on entering one of these is to break what vLLM calls.
NETS = {
    "function:apiserver.middleware.StanchMiddleware.__call__",
    "function:apiserver.middleware.StanchMiddleware._is_work",
    "function:apiserver.middleware.StanchMiddleware._met",
    "function:apiserver.middleware.StanchMiddleware._refresh_metrics",
    "function:apiserver.middleware.StanchMiddleware._tell",
    "function:apiserver.middleware.StanchMiddleware._turned_away",
    "function:apiserver.middleware.path_of",
    "function:apiserver.watcher.Watcher._guarded",
    "function:apiserver.watcher.Watcher._run",
    "function:apiserver.watcher.Watcher.once",
    "function:engine.hooks._wrap",
    "function:engine.rank._safely",
    "function:nixl_fix.run",
    "function:plugin.register",
}
# Made while the server starts, where vLLM asks for our class by its name: without them there is none.
AT_START = {
    "function:apiserver.ask.Ranks.__init__",
    "function:apiserver.boot.boot_id",
    "function:apiserver.control.load_control",
    "function:apiserver.metrics.Metrics.__init__",
    "function:apiserver.middleware.StanchMiddleware.__init__",
    "function:apiserver.releasing.Releasing.__init__",
    "function:compat.",
    "function:connector.",
}
# Known by their effect alone: the answer of one question is an error.
NOT_COUNTED = {
    "function:apiserver.ask._ask_one",
    "function:apiserver.middleware.StanchMiddleware._serve",
    "function:apiserver.middleware._respond",
    "function:apiserver.releasing.Releasing._guarded",
    "function:apiserver.releasing.Releasing._start",
    "function:engine.kit.answer",
}


@dataclass
class Scene:
    """A pair with the kit and its connector, both under chaos, and a decode engine whose kit raises at
    whatever it does, from its first line."""

    prefill: Engine
    decode: Engine
    broken: Engine
    chaos: list[Chaos]
    expected: str = ""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    boots: dict[str, str] = field(default_factory=dict)
    # Points that raised in an earlier kind of work.
    done: set[str] = field(default_factory=set)

    def text(self, decode: Engine) -> str:
        """What the pair says to one prompt."""
        number = next(self.numbers)
        answer = pd_request(self.prefill.url, decode.url, words(100, seed=1), 8, number=number).answer()
        assert answer.status == 200, answer.body
        said: str = answer.body["choices"][0]["text"]
        return said

    def order(self, points: list[str], times: int | None = 1) -> int:
        """In both engines of the pair; the round's number, the same in both."""
        first, second = (one.order(points, times) for one in self.chaos)
        assert first == second
        return first

    def errors(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for engine in (self.prefill, self.decode):
            for hook, count in ask(engine, "state").body["errors"].items():
                found[hook] = found.get(hook, 0) + count
        return found

    def count(self, point: str) -> int:
        return count_of(self.errors(), point)

    # -- kinds of work

    def traffic(self) -> None:
        """One request through both engines."""
        assert self.text(self.decode) == self.expected

    def questions(self) -> None:
        """Every route answers something, whatever became of it; vLLM's own page is whole."""
        for engine in (self.prefill, self.decode):
            for what in ("requests", "state", "ready", "unknown"):
                ask(engine, what)
            page = get(engine.url, "/metrics")
            assert page.status == 200
            assert "vllm:generation_tokens_total" in page.body
            assert engine.healthy

    def commands(self) -> None:
        """A drain that ends, and a drain that is ended."""
        for verb, deadline_s in (("drain", 0.3), ("drain", 5), ("undrain", 5)):
            for engine in (self.prefill, self.decode):
                self.command(engine, verb, deadline_s)
        for engine in (self.prefill, self.decode):
            until(lambda one=engine: self._serves(one), f"{engine.name} serves again")  # type: ignore[misc]

    def command(self, engine: Engine, verb: str, deadline_s: float) -> None:
        body = {
            "id": f"c-{next(self.numbers)}",
            "verb": verb,
            "bootId": self.boots[engine.name],
            "deadlineSeconds": deadline_s,
        }
        post(engine.url, contract.ROUTE_COMMAND, body, {"Authorization": f"Bearer {TOKEN}"})

    def preemption(self) -> None:
        """Two generations that do not fit into the cache together."""
        before = self.decode.metric("vllm:num_preemptions_total") or 0
        pending = [complete(self.decode.url, words(300, seed=seed), max_tokens=100) for seed in (7, 8)]
        assert [one.answer().status for one in pending] == [200, 200]
        assert (self.decode.metric("vllm:num_preemptions_total") or 0) > before

    def release(self) -> None:
        """A request that is stuck and whose client is gone; a release that fails is ordered again."""
        number = next(self.numbers)
        prompt = words(64, seed=20_000 + number)
        pending = pd_request(self.prefill.url, self.decode.url, prompt, mark=MUTE, number=number)
        until(lambda: self.decode.metric(WAITING) == 1, "parked", every_s=0.05)
        pending.give_up()
        until(lambda: self.decode.metric(WAITING) == 0, "its client is gone", every_s=0.05)
        assert (self.decode.metric(USAGE) or 0) > 0
        self.command(self.decode, "release", 5)
        until(
            lambda: self._is_free() or self._has_raised(), "it is released, or something raised", every_s=0.05
        )
        if self._is_free():
            return
        self.order([])
        # The gauge is of the last step, and a release that failed may not have made one.
        self.traffic()
        if not self._is_free():
            self.command(self.decode, "release", 30)
            until(self._is_free, "it is released the second time", every_s=0.05)

    def _is_free(self) -> bool:
        return self.decode.metric(USAGE) == 0

    def _has_raised(self) -> bool:
        return bool(self.chaos[1].raised(self.chaos[1].number))

    def _serves(self, engine: Engine) -> bool:
        return complete(engine.url, words(10), max_tokens=1).answer().status == 200

    def settle(self) -> None:
        """The pair as after a start: a request has gone through, the boot ids are known."""
        self.text(self.decode)
        self.expected = self.text(self.decode)
        self.boots = {one.name: ask(one, "state").body["bootId"] for one in (self.prefill, self.decode)}


@pytest.fixture(scope="module")
def scene(bed: Bed) -> Scene:
    write_weights(bed.directory / "model")
    path = chaos_path(bed.directory / "kit")
    token = bed.directory / "token"
    token.write_text(TOKEN)
    chaos = {name: Chaos(bed.directory / f"chaos-{name}") for name in ("prefill", "decode", "broken")}
    chaos["broken"].order("all", times=None, but=[*NETS, *AT_START])

    def engine(spec: Spec) -> Engine:
        name = spec.name or spec.role
        variables = {VARIABLE: str(chaos[name].directory), contract.ENV_TOKEN_FILE: str(token)}
        return Fitted(bed, spec, variables)

    common = {"fixed": True, "extra_args": (*MIDDLEWARE, *NEEDS), "python_path": path}
    prefill = engine(Spec("prefill", **common))  # type: ignore[arg-type]
    decode = engine(Spec("decode", inject=True, blocks=24, **common))  # type: ignore[arg-type]
    broken = engine(Spec("decode", name="broken", **common))  # type: ignore[arg-type]
    start(prefill, decode, broken)
    made = Scene(prefill, decode, broken, [chaos["prefill"], chaos["decode"]])
    made.settle()
    return made


def test_all_of_it_raises_from_the_start(scene: Scene, bed: Bed) -> None:
    """Stock vLLM is what is left."""
    assert scene.text(scene.broken) == scene.expected
    assert scene.text(scene.broken) == scene.expected
    assert scene.broken.healthy
    assert get(scene.broken.url, "/metrics").status == 200
    # A middleware that could not be made is none: these are not vLLM's paths.
    for route in ("requests", "state", "ready"):
        assert ask(scene.broken, route).status == 404
    assert "stanch: nothing was added to this vLLM" in scene.broken.log.read_text()


@pytest.mark.parametrize("work", ["traffic", "questions", "commands", "preemption", "release"])
def test_each_in_turn(scene: Scene, work: str, capsys: pytest.CaptureFixture[str]) -> None:
    do: Callable[[], None] = getattr(scene, work)
    # What is done once only is done in the first of the two.
    do()
    number = scene.order([])
    do()
    until(lambda: bool(points_of_the_watcher(scene, number)), "the watcher has made its round")
    points = sorted(scene.chaos[1].seen(number) - NETS - scene.done)
    scene.done.update(points)
    assert points
    wrong: dict[str, str] = {}
    missed: list[str] = []
    for point in points:
        trouble = raising(scene, point, do, missed)
        if trouble is not None:
            wrong[point] = trouble
            restart_the_dead(scene)
    assert not wrong
    # What comes once a second only may have been missed; a hook may not.
    assert len(missed) <= len(points) // 10, missed
    assert not [one for one in missed if one.startswith("hook:")]
    scene.order([])
    assert scene.text(scene.decode) == scene.expected
    for engine in (scene.prefill, scene.decode):
        state = ask(engine, "state").body
        assert (state["disabled"], state["ready"], state["draining"]) == (None, True, False)
    with capsys.disabled():
        hooks = [one.removeprefix("hook:") for one in points if one.startswith("hook:")]
        print(f"\n{work}: {len(points)} points raised, of them the hooks {', '.join(hooks) or '(none)'}")


def points_of_the_watcher(scene: Scene, number: int) -> set[str]:
    return {one for one in scene.chaos[1].seen(number) if one.startswith("hook:turn")}


def raising(scene: Scene, point: str, do: Callable[[], None], missed: list[str]) -> str | None:
    """Do the work while the point raises; what went wrong, None where nothing did."""
    before = scene.errors()
    number = scene.order([point], TIMES)

    def raised() -> bool:
        return scene.chaos[1].raised(number)[point] > 0

    try:
        for _ in range(4):
            do()
            if raised():
                break
            with suppress(TimeoutError):
                until(raised, "it raised", 1.5, 0.02)
        scene.order([])
        if not raised():
            missed.append(point)
        elif point not in NOT_COUNTED:
            until(lambda: scene.count(point) > count_of(before, point), "it is counted", every_s=0.02)
    except (AssertionError, NoAnswerError, TimeoutError, ValueError) as error:
        scene.order([])
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def count_of(errors: dict[str, int], point: str) -> int:
    """Of a hook under its name; of a function all errors, since any hook above it may catch."""
    return errors.get(point.removeprefix("hook:"), 0) if point.startswith("hook:") else sum(errors.values())


def restart_the_dead(scene: Scene) -> None:
    """So that one finding does not hide the next."""
    if not (scene.prefill.healthy and scene.decode.healthy):
        for engine in (scene.prefill, scene.decode):
            engine.restart()
        scene.settle()


def test_the_counter_on_the_metrics_page(scene: Scene) -> None:
    before = scene.decode.metric("stanch_kit_errors", engine="0")
    assert before is not None
    scene.order(["hook:add_request"])
    scene.traffic()
    scene.order([])
    assert scene.decode.metric("stanch_kit_errors", engine="0") == before + 1


def test_twenty_in_a_row_in_the_engine_core_turn_it_off(scene: Scene) -> None:
    """These come last: off is for good."""
    scene.chaos[1].order(["hook:add_request"], None)
    for _ in range(FAILURES_IN_A_ROW):
        scene.traffic()
    scene.chaos[1].order([])
    state = ask(scene.decode, "state").body
    assert state["disabled"] == f"add_request failed {FAILURES_IN_A_ROW} times in a row (ChaosError)"
    listed = ask(scene.decode)
    assert (listed.status, listed.body["missingRanks"]) == (501, [0])
    assert "turned itself off" in listed.body["error"]
    parked = scene.decode.metric("stanch_parked_requests", engine="0")
    assert parked is not None
    assert math.isnan(parked), "never 0"
    assert (scene.decode.metric("stanch_kit_errors", engine="0") or 0) >= FAILURES_IN_A_ROW
    assert "stanch: the kit turned itself off: add_request failed" in scene.decode.log.read_text()
    assert ask(scene.decode, "ready").status == 200
    scene.traffic()
    assert ask(scene.decode, "state").body["errors"] == state["errors"], "it does nothing any more"


def test_twenty_in_a_row_in_the_api_server_turn_it_off(scene: Scene) -> None:
    scene.chaos[0].order(["function:apiserver.gate.Gate.turns_away"], None)
    for _ in range(FAILURES_IN_A_ROW):
        scene.traffic()
    state = ask(scene.prefill, "state").body
    assert "control.turns_away failed 20 times in a row" in state["disabled"]
    assert ask(scene.prefill).status == 501
    assert ask(scene.prefill, "ready").status == 200
    scene.chaos[0].order([])
    scene.traffic()


def test_twenty_in_a_row_in_the_watcher_turn_it_off(scene: Scene) -> None:
    scene.chaos[1].order(["hook:turn"], None)
    until(lambda: "turn failed" in str(ask(scene.decode, "state").body["disabled"]), "off")
    scene.chaos[1].order([])
    scene.command(scene.decode, "drain", 30)
    scene.traffic()
    assert ask(scene.decode, "ready").status == 200, "a gate that is off stands against nothing"


def test_the_log_says_it_once_a_minute_and_without_the_text(scene: Scene) -> None:
    log = scene.decode.log.read_text()
    assert "stanch: add_request failed: ChaosError" in log
    # Dozens of them, within a few minutes.
    assert log.count("stanch: add_request failed") < 8
    assert "ChaosError: hook:add_request" not in log
