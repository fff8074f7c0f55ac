"""The arguments of `vllm serve`: what the fields make of them, what else is taken, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.edge.render.flags import serve_args
from stanch.edge.render.place import Problem
from tests.edge.render_world import deployment

pytestmark = pytest.mark.unit

KV = "--kv-transfer-config"
PATH = "spec.roles[decode]"


def made(args: list[str] | None = None, **more: Any) -> tuple[list[str], tuple[Problem, ...]]:
    """Of the decode role. more: fields of the spec, or of the role under `role`."""
    role = more.pop("role", {})
    engine = {**role.pop("engine", {}), "args": args or []}
    of = deployment(decode={**role, "engine": engine}, **more)
    return serve_args(of.spec, of.spec.roles[1], PATH)


def taken(args: list[str] | None = None, **more: Any) -> tuple[list[str], dict[str, Any]]:
    """The arguments without the value of --kv-transfer-config, and that value."""
    found, problems = made(args, **more)
    assert problems == ()
    at = found.index(KV)
    assert found.count(KV) == 1
    return [*found[:at], *found[at + 2 :]], json.loads(found[at + 1])


def test_the_least() -> None:
    args, transfer = taken()
    assert args == ["some/model", "--port=8000"]
    assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    of = deployment()
    prefill, _ = serve_args(of.spec, of.spec.roles[0], PATH)
    assert json.loads(prefill[-1])["kv_role"] == "kv_producer"


def test_everything_that_has_a_field() -> None:
    args, transfer = taken(
        ["--max-model-len", "512"],
        role={"parallelism": {"tensor": 2, "data": 4}, "engine": {"port": 9000, "shutdownTimeoutSeconds": 0}},
        model={"uri": "/m", "name": "shop"},
        kvTransfer={"mode": "Bidirectional", "leaseSeconds": 60, "blockSizeTokens": 64},
    )
    assert args == [
        "/m", "--port=9000", "--served-model-name=shop", "--tensor-parallel-size=2", "--data-parallel-size=4",
        "--block-size=64", "--shutdown-timeout=0", "--max-model-len", "512",
    ]  # fmt: skip
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 60, "bidirectional_kv_xfer": True}


@pytest.mark.parametrize(
    ("kv", "connector"),
    [
        ({"mode": "Push"}, "NixlPushConnector"),
        ({"mode": "Pull"}, "NixlConnector"),
        ({"connector": "MooncakeConnector"}, "MooncakeConnector"),
    ],
    ids=["push", "pull", "another"],
)
def test_the_connector(kv: dict[str, str], connector: str) -> None:
    assert taken(kvTransfer=kv)[1]["kv_connector"] == connector


WHOLE = '{"kv_buffer_device":"cpu","kv_role":"kv_consumer","kv_connector_extra_config":{"backends":["UCX"]}}'


@pytest.mark.parametrize(
    ("args", "more"),
    [
        ([KV, WHOLE], {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"backends": ["UCX"]}}),
        ([f"{KV}={WHOLE}"], {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"backends": ["UCX"]}}),
        (["--kv_transfer_config", '{"kv_port": 1}'], {"kv_port": 1}),
        ([f"{KV}.kv_port", "14579"], {"kv_port": 14579}),
        ([f"{KV}.kv_ip=127.0.0.1"], {"kv_ip": "127.0.0.1"}),
        (
            [f"{KV}.kv_connector_extra_config.backends+", "UCX,GDS"],
            {"kv_connector_extra_config": {"backends": ["UCX", "GDS"]}},
        ),
        (
            [KV, '{"kv_port": 1}', "-x", f"{KV}.kv_connector_extra_config.a", "null"],
            {"kv_port": 1, "kv_connector_extra_config": {"a": None}},
        ),
        ([KV, '{"engine_id": null, "kv_port": 2}'], {"engine_id": None, "kv_port": 2}),
    ],
    ids=["apart", "equals", "underscores", "a number's part", "a text's part", "a list", "several", "no id"],
)
def test_the_roles_own_keys_go_into_the_one_value(args: list[str], more: dict[str, Any]) -> None:
    rest, transfer = taken(args)
    assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", **more}
    assert rest == ["some/model", "--port=8000", *(["-x"] if "-x" in args else [])]


def test_a_lease_and_other_extra_settings_stand_together() -> None:
    kv = {"leaseSeconds": 60}
    _, transfer = taken([KV, '{"kv_connector_extra_config": {"backends": ["UCX"]}}'], kvTransfer=kv)
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 60, "backends": ["UCX"]}


CHILD = '{"kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","engine_id":"d0"}]}}'


@pytest.mark.parametrize(
    ("args", "at", "words"),
    [
        ([KV, '{"engine_id": "decode-0"}'], 0, "engine_id fixes the engine's id"),
        (["-x", KV, CHILD], 1, "kv_connector_extra_config fixes the engine's id"),
        ([f"{KV}.engine_id", "d0"], 0, "engine_id fixes the engine's id"),
        (
            [KV, '{"kv_role": "kv_both"}'],
            0,
            'kv_role is "kv_both", and by what stands before it "kv_consumer"',
        ),
        (
            ["--kv_transfer-config", '{"kv_connector": "X"}'],
            0,
            'kv_connector is "X", and by what stands before',
        ),
        ([f"{KV}.kv_port=1", f"{KV}.kv_port=2"], 1, "kv_port is 2, and by what stands before it 1"),
        (
            [KV, '{"kv_connector_extra_config": {"stanch_connector_patch": "Never"}}'],
            0,
            "kv_connector_extra_config.stanch_connector_patch has a field of its own: set spec.kvTransfer",
        ),
        ([KV, "not JSON"], 0, "has no JSON object"),
        ([KV, "[1]"], 0, "has no JSON object"),
        ([KV], 0, "has no JSON object"),
        ([KV, '{"a":' * 40 + "1" + "}" * 40], 0, "of at most 16 levels"),
        ([KV, "[" * 30_000], 0, "has no JSON object"),
        (["--kv-transfer", "{}"], 0, "is short for --kv-transfer-config: write it in full"),
        (["--port", "9000"], 0, "--port has a field of its own: set engine.port of the role"),
        (["-x", "-tp=2"], 1, "--tensor-parallel-size has a field of its own: set parallelism.tensor"),
        (["-dp", "2"], 0, "set parallelism.data of the role"),
        (["--served_model_name=a"], 0, "set spec.model.name"),
        (["--tensor-par=2"], 0, "is short for --tensor-parallel-size, which has a field of its own"),
        (["--block-size", "16"], 0, "set spec.kvTransfer.blockSizeTokens"),
        (["-n2"], 0, "--nnodes is for engines of several pods or ports, which are not made here"),
        (["--headless"], 0, "watch them with a LeakWatch"),
        (["--data-parallel-multi-port-external-lb"], 0, "engines of several pods or ports"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, list) else "",
)
def test_what_the_role_may_not_say(args: list[str], at: int, words: str) -> None:
    _, problems = made(args)
    (problem,) = problems
    assert problem.path == f"{PATH}.engine.args[{at}]"
    assert words in problem.message


@pytest.mark.parametrize(
    "args",
    [
        ["--data-parallel-backend=mp"],
        ["-pp", "2"],
        ["--kv-cache-dtype", "fp8"],
        ["-O3"],
        ["--model-impl=auto"],
    ],
    ids=lambda args: str(args[0]),
)
def test_other_flags_are_let_be(args: list[str]) -> None:
    assert taken(args)[0][2:] == args


def test_every_problem_is_told() -> None:
    _, problems = made(["--port=1", KV, '{"kv_role": "kv_both", "engine_id": "x"}'])
    assert [one.path[-3:] for one in problems] == ["[0]", "[1]", "[1]"]


WORDS = st.one_of(
    st.sampled_from(
        [
            KV,
            f"{KV}.engine_id",
            f"{KV}.kv_role=kv_both",
            f"{KV}.a.b+",
            "--kv_transfer_config",
            "--kv-transfer",
            "-tp",
        ]
    ),
    st.sampled_from(
        ["--port=1", "-n2", "-n", "--", "-", "--=", "=", ".", "--.", "null", "{}", "[1]", '{"a":1}']
    ),
    st.dictionaries(
        st.sampled_from(["engine_id", "kv_role", "kv_port", "kv_connector_extra_config"]),
        st.one_of(
            st.none(),
            st.integers(0, 1),
            st.just("kv_consumer"),
            st.just({"connectors": [{"engine_id": "x"}]}),
        ),
    ).map(json.dumps),
    st.text(max_size=6),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS, max_size=5))
def test_whatever_arguments_are_given_there_is_one_transfer_and_no_fixed_id(args: list[str]) -> None:
    found, problems = made(args)
    assert found[:2] == ["some/model", "--port=8000"]
    assert found[2] == KV
    for problem in problems:
        assert 0 <= int(problem.path.removeprefix(f"{PATH}.engine.args[").removesuffix("]")) < len(args)
    if not problems:
        transfer = json.loads(found[3])
        assert (transfer["kv_role"], transfer.get("engine_id")) == ("kv_consumer", None)
        assert '"engine_id":"' not in found[3]
        assert not any(word.replace("_", "-").startswith(KV) for word in found[4:])
