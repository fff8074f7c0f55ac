"""The exact flags and environment for the engine's container. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from stanch_connector.install import names


@dataclass(frozen=True, slots=True)
class Advice:
    """environment: to set, by name. flags: to add to `vllm serve`. merge: what to change in the value of the
    --kv-transfer-config that is there, all else in it kept."""

    environment: dict[str, str]
    flags: tuple[str, ...]
    merge: dict[str, str]


def advise(target: str, environ: Mapping[str, str]) -> Advice:
    """environ: the engine's, or the init container's where it is given the same.

    PYTHONPATH keeps what it has, after ours. VLLM_PLUGINS is a list of the plug-ins that may load, all where
    it is not set (vllm/plugins/__init__.py, read in 0.29): so it is appended to where it is set, and left
    alone where not.
    """
    paths = [part for part in environ.get("PYTHONPATH", "").split(":") if part and part != target]
    environment = {"PYTHONPATH": ":".join([target, *paths])}
    plugins = environ.get("VLLM_PLUGINS")
    if plugins is not None:
        others = [part for part in plugins.split(",") if part and part != names.PLUGIN_NAME]
        environment["VLLM_PLUGINS"] = ",".join([*others, names.PLUGIN_NAME])
    merge = {"kv_connector": names.CONNECTOR, "kv_connector_module_path": names.CONNECTOR_MODULE}
    return Advice(environment, ("--middleware", names.MIDDLEWARE), merge)


def lines(advice: Advice, environ: Mapping[str, str]) -> list[str]:
    """For people."""
    out = ["Environment of the engine's container:"]
    out += [f"  {name}={value}" for name, value in advice.environment.items()]
    if "PYTHONPATH" not in environ:
        out.append("  (where the engine's image sets PYTHONPATH itself, put its value behind ours)")
    if "VLLM_PLUGINS" not in advice.environment:
        out.append(
            f"  (where it is set for the engine's container, append ,{names.PLUGIN_NAME} to VLLM_PLUGINS; "
            "where it is not, leave it so)"
        )
    out += ["Flags to add to `vllm serve`:", "  " + " ".join(advice.flags)]
    out.append("For the fixed NIXL connector, in the value of --kv-transfer-config, its other keys kept:")
    out.append("  " + json.dumps(advice.merge)[1:-1])
    return out
