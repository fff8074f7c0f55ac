"""The kit's routes by the ASGI protocol, over a tiny application and a fake engine client."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from stanch_connector import contract
from stanch_connector.apiserver import ask, routes
from stanch_connector.apiserver import middleware as middleware_module
from stanch_connector.apiserver.boot import boot_id
from stanch_connector.apiserver.control import NoControl
from stanch_connector.apiserver.facts import facts
from stanch_connector.apiserver.middleware import MAX_BODY_BYTES, StanchMiddleware
from stanch_connector.contract import KitState
from stanch_connector.engine.guard import FAILURES_IN_A_ROW
from tests.connector.asgi import FakeApp, FakeCores, Response, call

pytestmark = pytest.mark.unit

ENTRY = {"id": "cmpl-a", "status": "FINISHED_ABORTED", "blocks": 10}
LIST = json.dumps({"requests": [ENTRY]})
EMPTY = json.dumps({"requests": []})
RANK_STATE: dict[str, Any] = {"fix": "not-needed", "fixReason": "fixed", "errors": {}, "disabled": None}


def replies(rank: int, question: str) -> Any:
    return LIST if question == "requests" else json.dumps(RANK_STATE)


def get(app: FakeApp, path: str, control: Any = None, **options: Any) -> Response:
    return asyncio.run(call(StanchMiddleware(app, control or NoControl()), app, path, **options))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


class Cordoned(NoControl):
    """A gate of which everything is closed."""

    def __init__(self) -> None:
        self.open = 0
        self.most_open = 0
        self.bodies: list[bytes] = []

    def not_ready(self) -> str | None:
        return "cordoned for leak-1"

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        return None if request_id == "stanch-canary-x" or path == "/health" else "draining"

    def opened(self) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)

    def closed(self) -> None:
        self.open -= 1

    def state(self) -> KitState:
        return {"draining": True, "cordoned": True, "cordonIncident": "leak-1", "outcomes": []}

    def access(self, authorization: str | None) -> tuple[int, Mapping[str, Any]] | None:
        return None if authorization == "Bearer t" else (401, {"error": "no"})

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        self.bodies.append(body)
        return 200, {"state": "accepted"}


class Broken(NoControl):
    """A gate of which everything raises."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name != "guard":
            raise RuntimeError("ours")
        return super().__getattribute__(name)


class TestRequests:
    def test_shape(self) -> None:
        answer = get(FakeApp(FakeCores(replies)), contract.ROUTE_REQUESTS)
        assert answer.status == 200
        assert answer.json() == {
            "schema": contract.SCHEMA_REQUESTS,
            "bootId": boot_id(),
            "ranks": {"0": {"requests": [ENTRY]}},
            "missingRanks": [],
        }
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-length"] == str(len(answer.body))

    def test_ranks_by_their_global_number(self) -> None:
        """A hybrid-balanced server manages ranks 4 and 300 only."""
        cores = FakeCores(lambda rank, _: LIST if rank == 300 else EMPTY, ranks=(4, 300))
        body = get(FakeApp(cores), contract.ROUTE_REQUESTS).json()
        assert body["ranks"] == {"4": {"requests": []}, "300": {"requests": [ENTRY]}}

    @pytest.mark.parametrize(
        "silent",
        [None, RuntimeError("EngineDeadError"), "no json", "[]", json.dumps({"error": "the kit failed"})],
        ids=["never answers", "raises", "no JSON", "no object", "says that it failed"],
    )
    def test_a_rank_without_an_answer_is_missing_never_empty(
        self, silent: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ask.Ranks.ask, "__defaults__", (0.05,))
        cores = FakeCores(lambda rank, _: silent if rank == 1 else LIST, ranks=(0, 1, 2))
        answer = get(FakeApp(cores), contract.ROUTE_REQUESTS)
        assert answer.status == 200
        assert sorted(answer.json()["ranks"]) == ["0", "2"]
        assert answer.json()["missingRanks"] == [1]

    @pytest.mark.parametrize("reply", [None, RuntimeError("EngineDeadError")], ids=["silent", "dead"])
    def test_all_missing(self, reply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ask.Ranks.ask, "__defaults__", (0.05,))
        answer = get(FakeApp(FakeCores(lambda *_: reply, ranks=(0, 1))), contract.ROUTE_REQUESTS)
        assert (answer.status, answer.json()["ranks"], answer.json()["missingRanks"]) == (200, {}, [0, 1])

    @pytest.mark.parametrize(
        ("app", "sentence"),
        [
            pytest.param(FakeApp(None), "no engine core", id="a server without an engine"),
            pytest.param(FakeApp(object()), "not shaped", id="an unknown client"),
            pytest.param(
                FakeApp(
                    FakeCores(lambda *_: json.dumps({"error": "no list: this vLLM's scheduler has no x"}))
                ),
                "has no x",
                id="an unknown scheduler",
            ),
            pytest.param(
                FakeApp(
                    FakeCores(
                        lambda *_: Exception("... 'EngineCoreProc' object has no attribute 'stanch_ask'")
                    )
                ),
                "VLLM_PLUGINS",
                id="no plug-in in the engine",
            ),
        ],
    )
    def test_501_with_a_sentence(self, app: FakeApp, sentence: str) -> None:
        answer = get(app, contract.ROUTE_REQUESTS)
        assert answer.status == 501
        assert sentence in answer.json()["error"]
        assert "ranks" not in answer.json()

    def test_many_readers_share_one_question_and_a_hung_rank_piles_nothing_up(self) -> None:
        async def scene() -> None:
            cores = FakeCores(lambda *_: None)
            asker = ask.Ranks()
            for _ in range(5):
                said = await asyncio.gather(*[asker.ask(cores, "requests", 0.01) for _ in range(20)])
                assert all(one.missing == [0] for one in said)
            assert cores.asked == [(0, "requests")]
            cores.reply = replies
            for task in asker._under_way.values():
                task.cancel()
            await asyncio.sleep(0)
            assert (await asker.ask(cores, "requests", 1)).answers == {0: {"requests": [ENTRY]}}

        asyncio.run(scene())


class TestKeys:
    @pytest.mark.parametrize(
        ("keys", "given", "status"),
        [
            (None, None, 200),
            ([], None, 200),
            (["one", "two"], "Bearer two", 200),
            (["one"], "bearer one", 200),
            (["one"], None, 401),
            (["one"], "Bearer two", 401),
            (["one"], "Bearer one ", 401),
            (["one"], "Basic one", 401),
            (["one"], "one", 401),
            (["schlüssel"], "Bearer schlüssel", 200),
        ],
    )
    def test_command_line(self, keys: list[str] | None, given: str | None, status: int) -> None:
        cores = FakeCores(replies)
        headers = {} if given is None else {"Authorization": given}
        answer = get(FakeApp(cores, keys=keys), contract.ROUTE_REQUESTS, headers=headers)
        assert answer.status == status
        assert bool(cores.asked) is (status == 200)

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "hidden")
        app = FakeApp(FakeCores(replies))
        assert get(app, contract.ROUTE_REQUESTS).status == 401
        with_key = {"Authorization": "Bearer hidden"}
        assert get(app, contract.ROUTE_REQUESTS, headers=with_key).status == 200
        # The command line goes before it.
        app = FakeApp(FakeCores(replies), keys=["shown"])
        assert get(app, contract.ROUTE_REQUESTS, headers=with_key).status == 401

    def test_state_and_ready_are_open(self) -> None:
        app = FakeApp(FakeCores(replies), keys=["one"])
        assert get(app, contract.ROUTE_STATE).status == 200
        assert get(app, contract.ROUTE_READY).status == 200

    def test_keys_that_cannot_be_told_keep_it_closed(self) -> None:
        app = FakeApp(FakeCores(replies))
        del app.state.args
        assert get(app, contract.ROUTE_REQUESTS).status == 501

    def test_the_path_below_a_root_path_is_guarded_as_well(self) -> None:
        app = FakeApp(FakeCores(replies), keys=["one"])
        path = "/llm" + contract.ROUTE_REQUESTS
        assert get(app, path, root_path="/llm").status == 401
        assert app.reached == []


class TestState:
    def test_shape(self) -> None:
        body = get(FakeApp(FakeCores(replies)), contract.ROUTE_STATE).json()
        assert body["schema"] == contract.SCHEMA_STATE
        assert body["contract"] == contract.CONTRACT_VERSION
        assert body["bootId"] == boot_id()
        assert (body["ready"], body["draining"], body["cordoned"]) == (True, False, False)
        assert (body["fix"], body["fixReason"]) == ("not-needed", "fixed")
        assert (body["errors"], body["disabled"]) == ({}, None)
        assert set(body) <= set(KitState.__annotations__)

    def test_the_worst_of_the_ranks(self) -> None:
        def reply(rank: int, question: str) -> str:
            of_ranks: list[dict[str, Any]] = [
                {"errors": {"add_request": 1, "_free_request": 2}},
                {"fix": "unpatched", "fixReason": "unknown", "errors": {"add_request": 3}},
                {"disabled": "add_request failed"},
            ]
            return json.dumps(RANK_STATE | of_ranks[rank])

        body = get(FakeApp(FakeCores(reply, ranks=(0, 1, 2))), contract.ROUTE_STATE).json()
        assert (body["fix"], body["fixReason"]) == ("unpatched", "unknown")
        assert body["errors"] == {"add_request": 4, "_free_request": 2}
        assert body["disabled"] == "add_request failed"

    def test_each_rank_says_by_which_id_its_peers_know_it(self) -> None:
        def reply(rank: int, question: str) -> str | None:
            # The second does not answer, the third has no connector.
            own: list[dict[str, Any] | None] = [{"engineId": "e_dp0"}, None, {"engineId": None}]
            return None if own[rank] is None else json.dumps(RANK_STATE | own[rank])  # type: ignore[operator]

        app = FakeApp(FakeCores(reply, ranks=(0, 1, 2)))
        app.state.vllm_config = _config(data_parallel_size=3)
        body = get(app, contract.ROUTE_STATE).json()
        assert body["engineIds"] == {"0": "e_dp0"}

    def test_the_id_of_a_lone_engine_that_hangs_is_its_configuration_s(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routes, "STATE_DEADLINE_SECONDS", 0.05)
        app = FakeApp(FakeCores(lambda *_: None))
        app.state.vllm_config = _config()
        assert get(app, contract.ROUTE_STATE).json()["engineIds"] == {"0": "e"}

    def test_a_hung_engine_does_not_keep_it_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(routes, "STATE_DEADLINE_SECONDS", 0.05)
        body = get(FakeApp(FakeCores(lambda *_: None)), contract.ROUTE_STATE).json()
        assert "fix" not in body
        assert body["ready"] is True

    def test_without_an_engine(self) -> None:
        body = get(FakeApp(None), contract.ROUTE_STATE).json()
        assert body["disabled"] == "this server has no engine core"

    @pytest.mark.parametrize(
        ("authorization", "sees"),
        [(None, False), ("Bearer wrong", False), ("Bearer vllms", True), ("Bearer t", True)],
    )
    def test_ids_in_outcomes_are_for_those_who_may_have_the_list(
        self, authorization: str | None, sees: bool
    ) -> None:
        control = Cordoned()
        outcome: contract.Outcome = {
            "id": "r", "state": "done", "released": ["cmpl-a"], "ways": {"cmpl-a": "freed"},
            "refused": {"cmpl-b": "no"}, "refusals": {"reading": 1},
        }  # fmt: skip
        control.state = lambda: KitState(draining=False, outcomes=[outcome])  # type: ignore[method-assign]
        app = FakeApp(FakeCores(replies), keys=["vllms"])
        headers = {} if authorization is None else {"Authorization": authorization}
        body = get(app, contract.ROUTE_STATE, control, headers=headers).body
        assert (b"cmpl-" in body) == sees
        assert json.loads(body)["outcomes"][0]["refusals"] == {"reading": 1}

    def test_of_a_cordoned_engine(self) -> None:
        body = get(FakeApp(FakeCores(replies)), contract.ROUTE_STATE, Cordoned()).json()
        assert (body["ready"], body["draining"], body["cordonIncident"]) == (False, True, "leak-1")


class TestReady:
    @pytest.mark.parametrize(
        ("control", "healthy", "status"),
        [
            pytest.param(NoControl(), True, 200, id="as vLLM"),
            pytest.param(NoControl(), False, 503, id="vLLM is dead"),
            pytest.param(Cordoned(), True, 503, id="cordoned"),
            pytest.param(Broken(), True, 200, id="a gate that fails is open"),
        ],
    )
    def test_status(self, control: Any, healthy: bool, status: int) -> None:
        answer = get(FakeApp(FakeCores(replies), healthy=healthy), contract.ROUTE_READY, control)
        assert (answer.status, answer.json()["ready"]) == (status, status == 200)

    def test_it_does_not_ask_the_engine(self) -> None:
        cores = FakeCores(replies)
        assert get(FakeApp(cores), contract.ROUTE_READY).status == 200
        assert cores.asked == []


class TestOtherTraffic:
    def test_everything_else_is_vllms(self) -> None:
        app = FakeApp(None)
        for path in ("/v1/completions", "/health", "/stanch", "/"):
            assert get(app, path).body == b"served"
        assert app.reached == ["/v1/completions", "/health", "/stanch", "/"]

    @pytest.mark.parametrize("kind", ["lifespan", "websocket"])
    def test_other_protocols(self, kind: str) -> None:
        app = FakeApp(None)

        async def nothing(*_: Any) -> Any:
            raise AssertionError

        asyncio.run(StanchMiddleware(app, Cordoned())({"type": kind, "app": app}, nothing, nothing))
        assert app.reached == [kind]

    def test_draining(self) -> None:
        app, control = FakeApp(None), Cordoned()
        refused = get(app, "/v1/completions", control, method="POST")
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert app.reached == []
        canary = {"X-Request-Id": "stanch-canary-x"}
        assert get(app, "/v1/completions", control, method="POST", headers=canary).body == b"served"
        assert get(app, "/health", control).body == b"served"
        # Only work is counted.
        assert (control.open, control.most_open) == (0, 1)

    def test_work_that_fails_is_closed_as_well(self) -> None:
        control = Cordoned()
        control.turns_away = lambda path, request_id: None  # type: ignore[method-assign]

        async def failing(*_: Any) -> None:
            raise ValueError("vLLM's own")

        with pytest.raises(ValueError, match="vLLM's own"):
            asyncio.run(call(StanchMiddleware(failing, control), FakeApp(None), "/v1/completions"))
        assert (control.open, control.most_open) == (0, 1)

    def test_a_gate_that_fails_lets_through_and_is_counted(self) -> None:
        app = FakeApp(FakeCores(replies))
        middleware = StanchMiddleware(app, Broken())

        async def scene() -> Any:
            for _ in range(FAILURES_IN_A_ROW):
                assert (await call(middleware, app, "/v1/completions")).body == b"served"
            return (await call(middleware, app, contract.ROUTE_STATE)).json()

        body = asyncio.run(scene())
        assert body["errors"]["control.turns_away"] == FAILURES_IN_A_ROW
        assert "in a row" in body["disabled"]
        # Off: it keeps nothing from the engine, and gives no list.
        assert asyncio.run(call(middleware, app, contract.ROUTE_REQUESTS)).status == 501
        assert asyncio.run(call(middleware, app, contract.ROUTE_READY)).status == 200

    def test_one_that_cannot_be_made_hands_on_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def raises() -> str:
            raise OSError

        monkeypatch.setattr(middleware_module, "boot_id", raises)
        app = FakeApp(FakeCores(replies))
        for path in ("/v1/completions", contract.ROUTE_STATE, "/metrics"):
            assert get(app, path).body == b"served"

    def test_a_request_without_a_path_is_vllms_to_answer(self) -> None:
        reached: list[str] = []

        async def application(scope: Any, *_: Any) -> None:
            reached.append(scope["type"])

        async def nothing(*_: Any) -> Any:
            raise AssertionError

        asyncio.run(StanchMiddleware(application, NoControl())({"type": "http"}, nothing, nothing))
        assert reached == ["http"]

    def test_what_was_not_counted_in_is_not_counted_out(self) -> None:
        control = Cordoned()
        control.turns_away = lambda path, request_id: None  # type: ignore[method-assign]
        control.open = 1

        def failing() -> None:
            raise RuntimeError

        control.opened = failing  # type: ignore[method-assign]
        assert get(FakeApp(None), "/v1/completions", control).body == b"served"
        assert control.open == 1

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("turns_away", "/v1/completions"),
            ("opened", "/v1/completions"),
            ("closed", "/v1/completions"),
            ("state", contract.ROUTE_STATE),
            ("not_ready", contract.ROUTE_READY),
            ("command", contract.ROUTE_COMMAND),
        ],
    )
    def test_failures_far_apart_do_not_turn_it_off(self, method: str, path: str) -> None:
        class Moody(NoControl):
            fails = False

        def moody(*arguments: Any) -> Any:
            if control.fails:
                raise RuntimeError
            return getattr(NoControl(), method)(*arguments)

        control = Moody()
        control.access = lambda authorization: None  # type: ignore[method-assign]
        setattr(control, method, moody)
        app = FakeApp(FakeCores(replies))
        middleware = StanchMiddleware(app, control)
        verb = "POST" if method == "command" else "GET"

        async def scene() -> Any:
            for _ in range(FAILURES_IN_A_ROW):
                for control.fails in (True, False):
                    await call(middleware, app, path, method=verb)
            return (await call(middleware, app, contract.ROUTE_STATE)).json()

        body = asyncio.run(scene())
        assert sum(body["errors"].values()) == FAILURES_IN_A_ROW
        assert body["disabled"] is None


class TestMetrics:
    SUMMARY = json.dumps(
        {"parked_requests": 1, "parked_blocks": 10, "orphan_requests": 2, "orphan_blocks": 24,
         "oldest_seconds": 50, "errors": 0, "fix": "unpatched"}
    )  # fmt: skip

    @pytest.fixture(autouse=True)
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
        fresh = CollectorRegistry()
        monkeypatch.setattr(prometheus_client.Gauge.__init__, "__defaults__", _with_registry(fresh))
        return fresh

    def test_set_anew_for_every_reading(self, registry: CollectorRegistry) -> None:
        replies = iter([self.SUMMARY, json.dumps({"error": "ours"}), self.SUMMARY])
        app = FakeApp(FakeCores(lambda rank, _: next(replies)))
        middleware = StanchMiddleware(app, NoControl())

        async def scene() -> list[float | None]:
            values = []
            for path in ("/metrics", "/metrics/", "/metrics"):
                assert (await call(middleware, app, path)).body == b"served"
                values.append(registry.get_sample_value("stanch_orphan_blocks", {"engine": "0"}))
            return values

        first, second, third = asyncio.run(scene())
        assert (first, third) == (24, 24)
        assert second is not None
        assert math.isnan(second)
        for fix in get_args(contract.Fix):
            value = registry.get_sample_value("stanch_fix", {"engine": "0", "fix": fix})
            assert value == (fix == "unpatched")
        assert registry.get_sample_value("stanch_oldest_stuck_seconds", {"engine": "0"}) == 50
        assert registry.get_sample_value("stanch_kit_errors", {"engine": "0"}) == 0

    def test_a_kit_that_is_off_shows_nothing_rather_than_the_last(self, registry: CollectorRegistry) -> None:
        app = FakeApp(FakeCores(lambda rank, _: self.SUMMARY))
        middleware = StanchMiddleware(app, Broken())

        async def scene() -> None:
            await call(middleware, app, "/metrics")
            for _ in range(FAILURES_IN_A_ROW):
                await call(middleware, app, "/v1/completions")
            assert (await call(middleware, app, "/metrics")).body == b"served"

        asyncio.run(scene())
        value = registry.get_sample_value("stanch_orphan_blocks", {"engine": "0"})
        assert value is not None
        assert math.isnan(value)
        errors = registry.get_sample_value("stanch_kit_server_errors")
        assert errors is not None
        assert errors >= FAILURES_IN_A_ROW

    @pytest.mark.parametrize("cores", [None, object()], ids=["no engine", "an unknown client"])
    def test_the_page_is_served_whatever_happens(self, cores: Any) -> None:
        app = FakeApp(cores)
        assert get(app, "/metrics").body == b"served"

    def test_other_pages_ask_nothing(self) -> None:
        cores = FakeCores(replies)
        get(FakeApp(cores), "/metricsfoo")
        get(FakeApp(cores), "/health")
        assert cores.asked == []


def _with_registry(registry: CollectorRegistry) -> tuple[Any, ...]:
    """Gauge's defaults with another registry, so that no test finds another's families."""
    signature = inspect.signature(prometheus_client.Gauge.__init__)
    return tuple(
        registry if name == "registry" else parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not inspect.Parameter.empty
    )


class TestCommandsRoute:
    def test_post(self) -> None:
        control = Cordoned()
        app = FakeApp(None, keys=["vllms"])
        options: dict[str, Any] = {"method": "POST", "body": b"{}", "headers": {"Authorization": "Bearer t"}}
        assert get(app, contract.ROUTE_COMMAND, control, **options).json() == {"state": "accepted"}
        assert control.bodies == [b"{}"]
        assert get(app, contract.ROUTE_COMMAND, control, method="POST").status == 401

    def test_too_long(self) -> None:
        control = Cordoned()
        options: dict[str, Any] = {"method": "POST", "body": b"x" * (MAX_BODY_BYTES + 1)}
        options["headers"] = {"Authorization": "Bearer t"}
        assert get(FakeApp(None), contract.ROUTE_COMMAND, control, **options).status == 413
        assert control.bodies == []

    @pytest.mark.parametrize(("token", "status"), [(b"Bearer t", 400), (b"Bearer u", 401)])
    def test_a_body_that_is_cut_off_or_not_wanted(self, token: bytes, status: int) -> None:
        """What is cut off is not carried out; without the token it is not even read."""
        control, app = Cordoned(), FakeApp(None)
        messages = [
            {"type": "http.request", "body": b'{"id": "half"}', "more_body": True},
            {"type": "http.disconnect"},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "app": app, "method": "POST", "path": contract.ROUTE_COMMAND,
            "headers": [(b"authorization", token)],
        }  # fmt: skip
        asyncio.run(StanchMiddleware(app, control)(scope, receive, send))
        assert sent[0]["status"] == status
        assert control.bodies == []
        assert len(messages) == (0 if status == 400 else 2)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/stanch/v1/nothing", "GET", 404),
        (contract.ROUTE_REQUESTS, "POST", 405),
        (contract.ROUTE_STATE, "DELETE", 405),
        (contract.ROUTE_COMMAND, "GET", 405),
        (contract.ROUTE_READY, "HEAD", 200),
    ],
)
def test_methods(path: str, method: str, status: int) -> None:
    assert get(FakeApp(FakeCores(replies)), path, method=method).status == status


def _config(engine_id: object = "e", **parallel: int) -> SimpleNamespace:
    transfer = SimpleNamespace(
        kv_connector="NixlConnector", kv_role="kv_both", engine_id=engine_id, kv_connector_extra_config={}
    )
    how = {"data_parallel_size": 1, "data_parallel_rank": 0, **parallel}
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=SimpleNamespace(**how))


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        (_config(), {"0": "e"}),
        (_config(data_parallel_size=2), {}),
        (_config(data_parallel_rank=3), {}),
        (_config(engine_id=None), {}),
        (SimpleNamespace(kv_transfer_config=None, parallel_config=None), {}),
        (None, {}),
    ],
    ids=["alone", "data parallel", "a rank of its own", "no id", "no connector", "no configuration"],
)
def test_the_configuration_tells_the_id_of_a_lone_engine_only(config: Any, ids: dict[str, str]) -> None:
    assert facts(config, (0, 29))["engineIds"] == ids


@pytest.mark.parametrize(
    ("version", "extra", "lease", "pin", "bidirectional"),
    [
        ((0, 29), {}, 30, None, False),
        ((0, 29), {"kv_lease_duration": 10}, 10, None, False),
        ((0, 29), {"bidirectional_kv_xfer": True}, 30, 480, True),
        ((0, 29), {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 60}, 30, 60, True),
        ((0, 21), {}, 480, None, False),
        (None, {}, None, None, None),
    ],
)
def test_lease_and_pin(version: Any, extra: Any, lease: Any, pin: Any, bidirectional: Any) -> None:
    transfer = SimpleNamespace(
        kv_connector="NixlConnector", kv_role="kv_consumer", kv_connector_extra_config=extra
    )
    state = facts(SimpleNamespace(kv_transfer_config=transfer), version)
    assert (state["leaseSeconds"], state["pinSeconds"], state["bidirectional"]) == (lease, pin, bidirectional)
    assert (state["connector"], state["role"]) == ("NixlConnector", "kv_consumer")


@pytest.mark.parametrize(
    "config",
    [
        None,
        SimpleNamespace(kv_transfer_config=None),
        SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_connector="LMCacheConnectorV1", kv_role="kv_both", kv_connector_extra_config={}
            )
        ),
    ],
)
def test_no_lease_of_another_connector(config: Any) -> None:
    state = facts(config, (0, 29))
    assert (state["leaseSeconds"], state["pinSeconds"], state["bidirectional"]) == (None, None, None)
