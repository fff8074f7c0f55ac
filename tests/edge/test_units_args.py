"""What the arguments of an engine's container say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.edge.units_args import Arguments, arguments_of

pytestmark = pytest.mark.unit

SERVES = Arguments(vllm=True)


def read(*args: str, command: tuple[str, ...] = ("vllm", "serve", "m"), **env: str) -> Arguments:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return arguments_of({"name": "vllm", "command": list(command), "args": list(args), "env": variables})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], {}),
        (["--headless"], {"headless": True}),
        (["--nnodes", "2"], {"nodes": 2}),
        (["--port", "8200"], {"port": 8200}),
        (["--port=$PORT"], {}),
        (["-n", "2"], {"nodes": 2}),
        (["--data_parallel_size", "4"], {"ranks": 4}),
        (["--data-parallel-size=4", "--data-parallel-size", "8"], {"ranks": 8}),
        (["-dp", "4", "-dpl", "2"], {"ranks": 4, "local_ranks": 2}),
        (["-dp=4", "-dpn", "1"], {"ranks": 4, "local_ranks": 1, "grouped": True}),
        (["-dpa", "head"], {"address": "head", "grouped": True}),
        (["--master-addr", "head"], {"address": "head"}),
        (["--data-parallel-size", "many"], {}),
        (["--data-parallel-size", "-8"], {}),
        (["--data-parallel-size"], {}),
        (["--headless-of-something"], {}),
        (["--kv-transfer-config", "not json"], {}),
        (["--kv-transfer-config", "[1, 2"], {}),
        (["--kv-transfer-config", '{"engine_id": ""}'], {}),
        (["--kv-transfer-config", '{"engine_id": "a"}'], {"engine_id": "a"}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"kv_lease_duration": 60}}'],
         {"lease_seconds": 60.0}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"kv_lease_duration": "60"}}'], {}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"kv_lease_duration": -1}}'], {}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"kv_lease_duration": 1e999}}'], {}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"decoder_kv_blocks_ttl": 90}}'], {}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"bidirectional_kv_xfer": true}}'],
         {"pin_seconds": 480.0}),
        (["--kv-transfer-config.kv_connector_extra_config.bidirectional_kv_xfer", "true",
          "--kv-transfer-config.kv_connector_extra_config.decoder_kv_blocks_ttl", "90"],
         {"pin_seconds": 90.0}),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"bidirectional_kv_xfer": $X}}'],
         {"pin_seconds": 480.0}),
    ],
)  # fmt: skip
def test_flags(args: list[str], said: dict[str, object]) -> None:
    assert read(*args) == replace(SERVES, **said)  # type: ignore[arg-type]


def test_variables_of_the_container_are_filled_in() -> None:
    given = read(
        "--data-parallel-size=$(DP)", "--kv-transfer-config", '{"engine_id": "$(ID)"}', DP="4", ID="x"
    )
    assert (given.ranks, given.engine_id) == (4, "x")


def test_a_script_is_read_as_a_shell_would() -> None:
    script = (
        "set -euo pipefail\n"
        "START=$(( LWS_WORKER_INDEX * 8 ))\n"
        "exec /opt/venv/bin/vllm serve \\\n"
        "  deepseek --port 8200 \\\n"
        "  --data-parallel-size 16 --data-parallel-size-local ${LOCAL} \\\n"
        "  --data-parallel-address $HEAD --data-parallel-start-rank $START \\\n"
        '  --kv-transfer-config \'{"kv_connector": "NixlConnector", "engine_id": "e"}\'\n'
    )
    given = read(script, command=("/bin/bash", "-c"), LOCAL="8", HEAD="lws-0")
    assert given == Arguments(
        vllm=True, ranks=16, local_ranks=8, address="lws-0", grouped=True, engine_id="e", port=8200
    )


def test_a_script_with_a_quote_that_does_not_end() -> None:
    assert read("echo it's; vllm serve m --headless", command=("sh", "-c")).headless


@pytest.mark.parametrize(
    ("command", "is_vllm"),
    [
        (("vllm", "serve"), True),
        (("/usr/bin/vllm", "serve"), True),
        (("python3", "-m", "vllm.entrypoints.openai.api_server"), True),
        (("vllm", "bench"), False),
        (("my-vllm-router", "serve"), False),
        ((), False),
        (("--model", "m", "--kv-transfer-config", "{}"), True),
        (("--model", "m"), False),
    ],
)
def test_what_starts_a_vllm_server(command: tuple[str, ...], is_vllm: bool) -> None:
    assert read(command=command).vllm is is_vllm


@pytest.mark.parametrize(
    ("given", "servers", "spans"),
    [
        (Arguments(), 1, False),
        (Arguments(ranks=8), 1, False),
        (Arguments(ranks=8, local_ranks=8, grouped=True), 1, False),
        (Arguments(ranks=16, local_ranks=8), 1, True),
        (Arguments(ranks=8, local_ranks=1, grouped=True), 8, False),
        (Arguments(ranks=8, local_ranks=1, grouped=True), 4, True),
        (Arguments(grouped=True), 1, True),
        (Arguments(nodes=2), 1, True),
        (Arguments(nodes=1), 1, False),
        (Arguments(headless=True), 1, True),
    ],
)
def test_whether_an_engine_spans_pods(given: Arguments, servers: int, spans: bool) -> None:
    assert given.spans_pods(servers) is spans
