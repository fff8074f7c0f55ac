"""Pods of real vLLM engines on the CPU, in the bed only.

No image holds them: a container gets the machine's own /usr, this Python, the installed engines and this
checkout, all read-only from the node, over an image of a few links. So a pod starts as fast as a process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stanch_connector.contract import DEFAULT_ANNOTATIONS, ROUTE_READY
from tests.bed import manifests
from tests.bed.image import HOST_IMAGE
from tests.bed.manifests import ANSWER_SECONDS, PORT, Object, Role
from tests.bed.place import REPOSITORY, BedError
from tests.engine import install
from tests.engine.client import MODEL_NAME
from tests.engine.kit import MIDDLEWARE, kit_path
from tests.engine.model import write_model
from tests.engine.weights import NEEDS, write_weights

_SIZES = ("--max-model-len=512", "--max-num-seqs=16", "--num-gpu-blocks-override=101")


@dataclass(frozen=True, slots=True)
class Vllm:
    """One installed version, and a directory with the model and the kit's metadata that its pods share."""

    installed: install.Installed
    model: Path
    kit: tuple[Path, ...]
    directory: Path

    @classmethod
    def prepare(cls, directory: Path, version: str = install.BASE_VERSION) -> Vllm:
        """Write the files below `directory`. Raises BedError where that version is not installed."""
        found = install.locate(version)
        if found is None:
            raise BedError(f"vLLM {version} is not installed; run `make engines`")
        model = write_model(directory / "model")
        write_weights(model)
        return cls(found, model, tuple(kit_path(directory / "kit")), directory)

    def pod(
        self,
        name: str,
        role: Role,
        *,
        inject: bool = False,
        fixed: bool = False,
        kit: bool = True,
        step_ms: int = 0,
        planted: Sequence[Path] = (),
    ) -> Object:
        """One engine: 100 usable blocks of 32 tokens, and weights with which every block counts. inject: the
        tests' own way to leak (tests/engine/injector.py); fixed: Stanch's connector; kit: without, a stock
        engine whose readiness is /health. step_ms: a model so slow, for an engine that injects. planted: what
        is on PYTHONPATH before the engine's own (tests/engine/planting.py)."""
        container: Object = {
            "name": "vllm",
            "image": HOST_IMAGE,
            "imagePullPolicy": "Never",
            "command": self._command(role, inject, fixed, kit, step_ms),
            "env": [
                *_addresses(),
                *({"name": key, "value": value} for key, value in self._settings(kit, planted).items()),
            ],
            "ports": [{"name": "http", "containerPort": PORT}],
            "startupProbe": {**_probe("/health"), "failureThreshold": 900},
            "readinessProbe": {**_probe(ROUTE_READY if kit else "/health"), "failureThreshold": 1},
        }
        directory, _, file = DEFAULT_ANNOTATIONS.rpartition("/")
        items = [{"path": file, "fieldRef": {"fieldPath": "metadata.annotations"}}]
        volumes: list[Object] = [
            {"name": "podinfo", "downwardAPI": {"items": items}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
        mounts: list[Object] = [
            {"name": "podinfo", "mountPath": directory, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ]
        more_volumes, more_mounts = self._host_mounts()
        volumes += more_volumes
        container["volumeMounts"] = [*mounts, *more_mounts]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": manifests.APP, "role": role}},
            "spec": {
                "containers": [container],
                "volumes": volumes,
                "terminationGracePeriodSeconds": 5,
                "enableServiceLinks": False,
            },
        }

    def deployment(
        self,
        name: str,
        replicas: Mapping[str, int],
        *,
        patch: str,
        planted: Sequence[Path],
        step_ms: int,
        watch: Object,
        router: Object,
    ) -> Object:
        """A DisaggDeployment of these engines, with the stock image's place taken by the node's files through
        the template of each role. planted: what is on PYTHONPATH before the engine's own; patch: its
        connectorPatch."""
        extra = {
            "kv_buffer_device": "cpu",
            **({"kv_connector_extra_config": {"stanch_step_delay_ms": step_ms}} if step_ms else {}),
        }
        settings = self._settings(kit=False, planted=planted)
        volumes, mounts = self._host_mounts()
        container = {
            "name": "vllm",
            "command": [str(self.installed.python), "-m", "vllm.entrypoints.cli.main", "serve"],
            "imagePullPolicy": "Never",
            "startupProbe": {"periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS, "failureThreshold": 900},
            "readinessProbe": {"periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS, "failureThreshold": 1},
            "volumeMounts": mounts,
        }
        template = {"spec": {"containers": [container], "volumes": volumes}}
        transfer = ("--kv-transfer-config", json.dumps(extra))
        engine = {
            "image": HOST_IMAGE,
            "args": ["--disable-uvicorn-access-log", *NEEDS, "--enforce-eager", *_SIZES, *transfer],
            "env": [{"name": key, "value": value} for key, value in settings.items()],
        }
        return {
            "apiVersion": "stanch.dev/v1alpha1",
            "kind": "DisaggDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"uri": str(self.model), "name": MODEL_NAME},
                "roles": [
                    {"name": role, "replicas": count, "engine": engine, "template": template}
                    for role, count in replicas.items()
                ],
                "kvTransfer": {"connectorPatch": patch, "blockSizeTokens": 32},
                "router": router,
                "watch": watch,
            },
        }

    def router(self, command: Sequence[str], port: int) -> Object:
        """The router of such a deployment: that command, with this checkout and its Python."""
        volumes, mounts = self._host_mounts()
        container = {
            "name": "router",
            "command": list(command),
            "imagePullPolicy": "Never",
            "env": [{"name": "PYTHONPATH", "value": str(REPOSITORY)}],
            "volumeMounts": mounts,
        }
        template = {"spec": {"containers": [container], "volumes": volumes}}
        return {"image": HOST_IMAGE, "port": port, "replicas": 1, "template": template}

    def _host_mounts(self) -> tuple[list[Object], list[Object]]:
        """Volumes and mounts of what a container sees of the node."""
        paths = self._paths()
        volumes = [{"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(paths)]
        mounts = [{"name": f"host-{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(paths)]
        return volumes, mounts

    def _paths(self) -> list[str]:
        """What of the node a container sees."""
        prefix = Path(sys.base_prefix)
        paths = [Path("/usr"), install.cache_directory(), REPOSITORY, self.directory]
        return [str(path) for path in [*paths, *([] if prefix.is_relative_to("/usr") else [prefix])]]

    def _command(self, role: Role, inject: bool, fixed: bool, kit: bool, step_ms: int) -> list[str]:
        transfer: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
            "kv_buffer_device": "cpu",
        }
        if inject:
            transfer["kv_connector"] = "StanchFixedInjector" if fixed else "StanchInjector"
            transfer["kv_connector_module_path"] = "tests.engine.injector"
        elif fixed:
            transfer["kv_connector"] = "StanchNixlConnector"
            transfer["kv_connector_module_path"] = "stanch_connector.connector"
        if step_ms:
            transfer["kv_connector_extra_config"] = {"stanch_step_delay_ms": step_ms}
        return [
            *[str(self.installed.python), "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)],
            *[f"--served-model-name={MODEL_NAME}", "--host=0.0.0.0", f"--port={PORT}"],
            *["--disable-uvicorn-access-log", *NEEDS, "--enforce-eager", "--block-size=32", *_SIZES],
            *["--kv-transfer-config", json.dumps(transfer), *(MIDDLEWARE if kit else ())],
        ]

    def _settings(self, kit: bool, planted: Sequence[Path] = ()) -> dict[str, str]:
        inside = REPOSITORY / "tests/engine/inside"
        path = [*planted, inside, *self.installed.python_path, *(self.kit if kit else ()), REPOSITORY]
        return {
            "PYTHONPATH": os.pathsep.join(str(one) for one in path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": "eth0",
            "STANCH_BED_NIXL_DELAY_US": "1000",
            "STANCH_BED_YIELD_US": "200",
        }


def _addresses() -> list[Object]:
    """NIXL's side channel is told to peers as an address: the pod's."""
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": "POD_IP", "valueFrom": address},
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"},
    ]


def _probe(path: str) -> Object:
    return {"httpGet": {"path": path, "port": PORT}, "periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS}
