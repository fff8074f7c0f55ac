"""The simulated engine, started as the real one is."""

from __future__ import annotations

import json

import pytest

from stanch.edge.demo.settings import Settings, settings_from
from stanch.edge.demo.vllm import own_arguments
from tests.edge.render_world import container, deployment, rendered

pytestmark = pytest.mark.unit


def of(arguments: list[str], **environment: str) -> Settings:
    return settings_from(own_arguments(arguments, environment))


def test_rendered_arguments_start_one() -> None:
    engine = {"port": 9000, "args": ["--max-model-len", "512", "--enforce-eager"]}
    role = {"engine": engine, "parallelism": {"data": 2}}
    kv = {"leaseSeconds": 60, "blockSizeTokens": 16}
    found = container(rendered(deployment(decode=role, kvTransfer=kv, model={"uri": "/m", "name": "shop"})))
    said = of(["serve", *found["args"]], HOSTNAME="d0", VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1")
    assert (said.name, said.role, said.model, said.advertise) == ("d0", "decode", "shop", "10.0.0.1")
    assert (said.host, said.port, said.ranks, said.block_tokens) == ("0.0.0.0", 9000, 2, 16)
    assert (said.lease_seconds, said.kit) == (60, True)


def test_without_the_middleware_it_has_no_kit_and_without_a_transfer_it_is_both() -> None:
    said = of(["serve", "tiny"])
    assert (said.kit, said.role, said.port, said.model) == (False, "both", 8000, "tiny")


@pytest.mark.parametrize(
    "arguments",
    [[], ["bench", "tiny"], ["serve"], ["serve", "tiny", "--kv-transfer-config", "{"]],
    ids=["nothing", "not serve", "no model", "no JSON"],
)
def test_what_vllm_would_not_take(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        own_arguments(arguments, {})
    assert error.value.code == 2


def test_a_prefill() -> None:
    transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_producer"})
    assert of(["serve", "tiny", "--kv-transfer-config", transfer]).role == "prefill"
