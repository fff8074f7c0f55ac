"""The injector beneath whatever NIXL connector an engine was configured with: a general plug-in of vLLM's.

injector.py is a connector of its own, to be named in --kv-transfer-config. Where something else decides on
the connector (a DisaggDeployment does), this one plants the fault into the class that vLLM is about to load.
Read against vLLM 0.29.0, distributed/kv_transfer/kv_connector/factory.py.
"""

# mypy: disable-error-code="import-not-found,unused-ignore"

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bed.place import REPOSITORY


def plant() -> None:
    """Every connector class that is a pull-mode NIXL connector is loaded with the fault mixed in."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

    from tests.engine.injector import Injection

    real = KVConnectorFactory.get_connector_class.__func__
    made: dict[type, type] = {}

    def planted(cls: Any, config: Any) -> Any:
        found = real(cls, config)
        if not issubclass(found, NixlPullConnector) or issubclass(found, Injection):
            return found
        if found not in made:
            made[found] = type(found.__name__, (Injection, found), {"__module__": found.__module__})
        return made[found]

    KVConnectorFactory.get_connector_class = classmethod(planted)


def planted_path(directory: Path) -> list[Path]:
    """What goes onto PYTHONPATH; the .dist-info by which vLLM finds it is written below the directory."""
    info = directory / "stanch_bed-0.0.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stanch-bed\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nbed = tests.engine.planting:plant\n")
    return [directory, REPOSITORY]
