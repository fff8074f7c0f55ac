"""The rendered arguments, and what is refused among a role's own, against vLLM's own parser. No engine
starts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stanch.api.v1alpha1 import DisaggDeployment
from stanch.edge.render import Place, render
from tests.api.kinds_files import EXAMPLES, read
from tests.edge.render_world import deployment, rendered
from tests.engine import install

pytestmark = pytest.mark.engine

INSIDE = Path(__file__).parent / "inside" / "parse_serve.py"
VERSIONS = install.DEFAULT_VERSIONS


def parsed(version: str, lines: list[list[str]]) -> list[dict[str, Any]]:
    """What that version makes of each."""
    found = install.locate(version)
    if found is None:
        pytest.skip(f"vLLM {version} is not installed: `make engines`")
    path = os.pathsep.join(str(one) for one in found.python_path)
    done = subprocess.run(
        [str(found.python), str(INSIDE)],
        input=json.dumps(lines),
        env={**os.environ, "PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def lines_of(of: DisaggDeployment) -> dict[str, list[str]]:
    """By role, what the engine's container runs behind `vllm`."""
    found = {}
    for one in rendered(of).objects:
        role = one["metadata"]["labels"].get("stanch.dev/role")
        if one["kind"] == "Deployment" and role != "router":
            (engine,) = [c for c in one["spec"]["template"]["spec"]["containers"] if c["name"] == "vllm"]
            assert engine["command"] == ["vllm", "serve"]
            found[role] = ["serve", *engine["args"]]
    return found


def everything() -> DisaggDeployment:
    transfer = '{"kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"backends": ["UCX"]}}'
    return deployment(
        decode={
            "parallelism": {"tensor": 2, "data": 4},
            "engine": {
                "port": 9000,
                "shutdownTimeoutSeconds": 60,
                "args": ["--enforce-eager", f"--kv_transfer_config={transfer}", "-pp", "2"],
            },
        },
        model={"uri": "/models/shop", "name": "shop"},
        kvTransfer={"mode": "Bidirectional", "leaseSeconds": 60, "blockSizeTokens": 64},
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_reads_what_the_fields_say(version: str) -> None:
    plain = deployment(kvTransfer={"connectorPatch": "Never"})
    push = deployment(kvTransfer={"mode": "Push"})
    examples = [
        lines_of(DisaggDeployment.model_validate(read(path)))["prefill"]
        for path in EXAMPLES
        if read(path)["kind"] == "DisaggDeployment"
    ]
    lines = [lines_of(everything())[role] for role in ("prefill", "decode")]
    lines += [lines_of(plain)["decode"], lines_of(push)["prefill"], *examples]
    answers = parsed(version, lines)
    assert [one for one in answers if "error" in one] == []
    prefill, decode, stock, pushing = (one["ok"] for one in answers[:4])
    assert decode["model"] == "/models/shop"
    assert decode["served"] in ("shop", ["shop"])
    numbers = ("port", "tensor", "data", "block", "shutdown", "nodes")
    assert [decode[key] for key in numbers] == [9000, 2, 4, 64, 60, 1]
    assert [prefill[key] for key in numbers] == [8000, 1, 1, 64, 0, 1]
    assert (prefill["transfer"]["kv_role"], decode["transfer"]["kv_role"]) == ("kv_producer", "kv_consumer")
    assert decode["transfer"]["kv_connector_module_path"] == "stanch_connector.connector"
    assert decode["transfer"]["kv_load_failure_policy"] == "recompute"
    assert decode["transfer"]["kv_connector_extra_config"] == {
        "kv_lease_duration": 60,
        "bidirectional_kv_xfer": True,
        "backends": ["UCX"],
        "stanch_connector_patch": "Auto",
    }
    assert (stock["transfer"]["kv_connector"], stock["transfer"]["kv_connector_module_path"]) == (
        "NixlConnector",
        None,
    )
    assert pushing["transfer"]["kv_connector"] == "NixlPushConnector"
    # Made anew at each start.
    ids = [one["ok"]["transfer"]["engine_id"] for one in answers]
    assert len(set(ids)) == len(ids)


def test_what_is_refused_of_a_role_is_what_vllm_would_take() -> None:
    """Each spelling that is refused would have changed what a field says, without a word."""
    whole = ["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}']
    spellings: dict[str, list[str]] = {
        "port": ["--port=9", "--por=9"],
        "tensor": ["-tp=2", "--tensor_parallel_size=2", "--tensor-par=2"],
        "data": ["-dp=2"],
        "nodes": ["-n2", "--nnodes=2"],
        "block": ["--block-size=16"],
        "shutdown": ["--shutdown-timeout=9", "--shut=9"],
    }
    cases = [(key, [one]) for key, ones in spellings.items() for one in ones]
    cases += [
        ("transfer", ["--kv-tran", whole[1]]),
        ("transfer", [*whole, "--kv-transfer-config.engine_id", "d0"]),
    ]
    answers = parsed(install.BASE_VERSION, [["serve", "/m"], *(["serve", "/m", *args] for _, args in cases)])
    default = answers[0]["ok"]
    for (key, args), answer in zip(cases, answers[1:], strict=True):
        assert answer["ok"][key] != default[key], args
        refused = render(deployment(decode={"engine": {"args": args}}), Place("kit:1")).problems
        assert refused, args
