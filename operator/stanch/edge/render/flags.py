"""The arguments of `vllm serve` for one role. Pure.

Read in vLLM 0.29.0: the flags in vllm/engine/arg_utils.py and vllm/entrypoints/launchers/cli_args.py, how
they may be written in vllm/utils/argparse_utils.py (underscores for dashes; `--a.b.c VALUE` for a part of a
JSON argument, with `+` behind it for a list; abbreviations, which argparse takes). Never a fixed engine id:
vLLM makes a new one at each start (vllm/config/kv_transfer.py), and by the old one peers would take a
restarted engine for the one that they knew.
"""

from __future__ import annotations

import json
from typing import Any

from stanch.api.deployment import (
    DeployedRole,
    DisaggDeploymentSpec,
    EngineRole,
    KVTransfer,
    TransferMode,
)
from stanch.edge.render.merge import deeper_than
from stanch.edge.render.place import Object, Problem
from stanch_connector.contract import EXTRA_PATCH

KV_TRANSFER = "--kv-transfer-config"
_EXTRA = "kv_connector_extra_config"
_DEEPEST = 16

# Which field says it instead.
_FIELDS = {
    "--port": "engine.port of the role",
    "--model": "spec.model.uri",
    "--served-model-name": "spec.model.name",
    "--tensor-parallel-size": "parallelism.tensor of the role",
    "--data-parallel-size": "parallelism.data of the role",
    "--block-size": "spec.kvTransfer.blockSizeTokens",
    "--shutdown-timeout": "engine.shutdownTimeoutSeconds of the role",
}
# An engine of several pods, or with several ports.
_SPANNING = (
    "--nnodes",
    "--node-rank",
    "--headless",
    "--master-addr",
    "--data-parallel-address",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-size-local",
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    "--data-parallel-multi-port-external-lb",
)
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dpa": "--data-parallel-address",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
}
_OURS = (*_FIELDS, *_SPANNING, KV_TRANSFER)


def serve_args(
    spec: DisaggDeploymentSpec, role: DeployedRole, path: str
) -> tuple[list[str], tuple[Problem, ...]]:
    """What follows `vllm serve`: the model, what the fields say, the role's own arguments. path: the
    role's."""
    engine, parallel = role.engine, role.parallelism
    problems: list[Problem] = []
    theirs, transfers = _sorted_out(engine.args, f"{path}.engine.args", problems)
    transfer = transfer_config(spec.kv_transfer, role.name)
    for where, part in transfers:
        _add(transfer, part, where, problems)
    said = [spec.model.uri, f"--port={engine.port}"]
    for flag, value, default in (
        ("--served-model-name", spec.model.name, None),
        ("--tensor-parallel-size", parallel.tensor, 1),
        ("--data-parallel-size", parallel.data, 1),
        ("--block-size", spec.kv_transfer.block_size_tokens, None),
        ("--shutdown-timeout", engine.shutdown_timeout_seconds, None),
    ):
        if value != default:
            said.append(f"{flag}={value}")
    said += [KV_TRANSFER, json.dumps(transfer, sort_keys=True, separators=(",", ":")), *theirs]
    return said, tuple(problems)


def transfer_config(kv: KVTransfer, role: EngineRole) -> Object:
    """vLLM's KVTransferConfig for a role. `kv_both` is deprecated for NIXL in 0.29 (nixl/connector.py)."""
    extra: Object = {}
    if kv.lease_seconds is not None:
        extra["kv_lease_duration"] = kv.lease_seconds
    if kv.mode is TransferMode.BIDIRECTIONAL:
        extra["bidirectional_kv_xfer"] = True
    return {
        "kv_connector": "NixlPushConnector" if kv.mode is TransferMode.PUSH else kv.connector,
        "kv_role": "kv_producer" if role is EngineRole.PREFILL else "kv_consumer",
        **({_EXTRA: extra} if extra else {}),
    }


def _sorted_out(
    args: list[str], path: str, problems: list[Problem]
) -> tuple[list[str], list[tuple[str, Object]]]:
    """Those that stay as they are, and each value of --kv-transfer-config with its place."""
    rest: list[str] = []
    transfers: list[tuple[str, Object]] = []
    at = 0
    while at < len(args):
        here, word = f"{path}[{at}]", args[at]
        at += 1
        name, equals, value = word.partition("=")
        name, dot, keys = _spelled(name).partition(".")
        full = _meant(name)
        if full == KV_TRANSFER:
            if not equals:
                value = args[at] if at < len(args) else ""
                at += 1
            part = _part(keys, value) if dot else _json(value)
            if name != full:
                problems.append(Problem(here, f"is short for {full}: write it in full"))
            elif not isinstance(part, dict) or deeper_than(_DEEPEST, part):
                problems.append(
                    Problem(here, f"has no JSON object of at most {_DEEPEST} levels as its value")
                )
            else:
                transfers.append((here, part))
            continue
        if full is not None:
            problems.append(Problem(here, _why_not(name, full)))
        rest.append(word)
    return rest, transfers


def _spelled(name: str) -> str:
    """By its long name, with dashes in front of a part's dot."""
    if not name.startswith("--"):
        # argparse takes -n2 for -n 2.
        return _SHORT.get(name if name[2:] and not name[2:].isdigit() else name[:2], name)
    head, dot, tail = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{tail}"


def _meant(name: str) -> str | None:
    """The flag of ours that argparse would take the word for, but for other flags that begin so."""
    if name in _OURS:
        return name
    if len(name) < 5 or not name.startswith("--"):
        return None
    return next((flag for flag in _OURS if flag.startswith(name)), None)


def _why_not(name: str, full: str) -> str:
    if full in _SPANNING:
        return (
            f"{full} is for engines of several pods or ports, which are not made here: make them otherwise, "
            "and watch them with a LeakWatch"
        )
    short = "" if name == full else f" is short for {full}, which"
    return f"{name}{short} has a field of its own: set {_FIELDS[full]}"


def _json(value: str) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _part(keys: str, value: str) -> Object:
    """As vLLM reads `--json-arg.key.inner VALUE`: JSON where it is, else text; with `+` a list."""
    inner: Any = value.split(",") if keys.endswith("+") else _json(value)
    if inner is None and value != "null":
        inner = value
    for key in reversed(keys.removesuffix("+").split(".")):
        inner = {key: inner}
    assert isinstance(inner, dict)
    return inner


def _add(transfer: Object, part: Object, where: str, problems: list[Problem], above: str = "") -> None:
    """The keys of the role's own --kv-transfer-config, where they say nothing else than what is there."""
    for key, value in part.items():
        name, there = f"{above}{key}", transfer.get(key)
        if key == EXTRA_PATCH:
            problems.append(
                Problem(where, f"{name} has a field of its own: set spec.kvTransfer.connectorPatch")
            )
        elif _fixes_id({key: value}):
            problems.append(
                Problem(
                    where,
                    f"{name} fixes the engine's id: peers would take a restarted engine for the one before; "
                    "leave it out, and vLLM makes a new one at each start",
                )
            )
        elif isinstance(value, dict) and (there is None or isinstance(there, dict)):
            _add(transfer.setdefault(key, {}), value, where, problems, f"{name}.")
        elif there is not None and there != value:
            said, wanted = json.dumps(value), json.dumps(there)
            problems.append(Problem(where, f"{name} is {said}, and by what stands before it {wanted}"))
        else:
            transfer[key] = value


def _fixes_id(value: object) -> bool:
    """Anywhere in it: a connector within a MultiConnector has one, too."""
    if isinstance(value, list):
        return any(_fixes_id(one) for one in value)
    return isinstance(value, dict) and any(
        (name == "engine_id" and one is not None) or _fixes_id(one) for name, one in value.items()
    )
