"""What travels from each rank to the scheduler with the output of a step. Imports vLLM.

KVConnectorWorkerMetadata and KVConnectorOutput.kv_connector_worker_meta are in vLLM 0.18 to 0.33
(kv_connector/v1/base.py, v1/outputs.py); an executor of several ranks calls `aggregate`, one of a single rank
hands the object on.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata


class RankMeta(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """ranks: by rank, what engine.rank.Rank.told() made."""

    def __init__(self, ranks: dict[int, dict[str, Any]]) -> None:
        self.ranks = ranks

    def aggregate(self, other: Any) -> RankMeta:
        """Both, in a new one; what is not of ours is left out."""
        return RankMeta({**self.ranks, **getattr(other, "ranks", {})})
