"""The simulated engine started as the real one: `vllm serve MODEL ...` with vLLM's own flags and variables.

    python -m stanch.edge.demo.vllm serve MODEL --port=8000 --kv-transfer-config '{"kv_role": "kv_consumer"}'

Those that mean something to a simulation are taken, all others are let be. It has a kit where the kit's
middleware is among its flags, as a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from stanch.edge.demo import engine

_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_MIDDLEWARE = "StanchMiddleware"


def own_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The simulated engine's own arguments that say the same. arguments: what stands behind `vllm`. Exits
    with 2 where they are none of `vllm serve`'s."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", default="8000")
    parser.add_argument("--served-model-name")
    parser.add_argument("--data-parallel-size", "-dp", default="1")
    parser.add_argument("--block-size", default="32")
    parser.add_argument("--api-key")
    parser.add_argument("--middleware", action="append", default=[])
    parser.add_argument("--kv-transfer-config", type=json.loads, default={})
    said, _ = parser.parse_known_args(arguments)
    transfer = said.kv_transfer_config
    found = {
        "name": environment.get("HOSTNAME", "engine"),
        "role": _ROLES.get(transfer.get("kv_role"), "both"),
        "host": said.host,
        "port": said.port,
        "advertise": environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST"),
        "model": said.served_model_name or said.model,
        "block-tokens": said.block_size,
        "lease-seconds": transfer.get("kv_connector_extra_config", {}).get("kv_lease_duration"),
        "data-parallel-size": said.data_parallel_size,
        "api-key": said.api_key or environment.get("VLLM_API_KEY"),
    }
    kit = any(name.endswith(_MIDDLEWARE) for name in said.middleware)
    return [
        *(f"--{name}={value}" for name, value in found.items() if value is not None),
        *([] if kit else ["--no-kit"]),
    ]


if __name__ == "__main__":
    sys.argv[1:] = own_arguments(sys.argv[1:], os.environ)
    engine.main()
