"""What the kit stands on inside vLLM beyond public interfaces, and whether a version's sources have it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stanch_connector import compat
from stanch_connector.engine import layout
from tests.connector.conformance.pysource import ClassView, called, find_class, parse
from tests.connector.conformance.sources import ALL, CONNECTORS, NIXL, locate_tree

RUNNER = "vllm/v1/worker/kv_connector_model_runner_mixin.py"
RUNNER_V2 = "vllm/v1/worker/gpu/kv_connector.py"
Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Seam:
    """One name or signature. used_by: the part of the kit. misfit: of a version's tree, what is wrong with
    it, or None. versions: where it is known to fit."""

    name: str
    used_by: str
    misfit: Callable[[Path], str | None]
    versions: tuple[str, ...] = ALL

    def within(self, first: str, last: str) -> Seam:
        """The same, known to fit from one version to another, both included."""
        return replace(self, versions=ALL[ALL.index(first) : ALL.index(last) + 1])


class Tree:
    """The classes of one version that the kit touches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        nixl = (*sorted((root / NIXL).glob("*.py")), root / CONNECTORS / "v1/nixl_connector.py")
        sched = root / "vllm/v1/core/sched"
        self.scheduler = find_class((sched / "scheduler.py", sched / "interface.py"), "Scheduler")
        self.manager = self._class("vllm/v1/core/kv_cache_manager.py", "KVCacheManager")
        self.pool = self._class("vllm/v1/core/block_pool.py", "BlockPool")
        self.engine = self._class("vllm/v1/engine/core.py", "EngineCoreProc")
        self.output = self._class("vllm/v1/outputs.py", "KVConnectorOutput")
        self.status = self._class("vllm/v1/request.py", "RequestStatus")
        self.factory = self._class(f"{CONNECTORS}/factory.py", "KVConnectorFactory")
        self.aggregator = self._class(f"{CONNECTORS}/utils.py", "KVOutputAggregator")
        self.base = self._class(f"{CONNECTORS}/v1/base.py", "KVConnectorBase_V1")
        self.worker_meta = self._class(f"{CONNECTORS}/v1/base.py", "KVConnectorWorkerMetadata")
        self.multi = self._class(f"{CONNECTORS}/v1/multi_connector.py", "MultiConnector")
        self.multi_meta = self._class(f"{CONNECTORS}/v1/multi_connector.py", "MultiKVConnectorWorkerMetadata")
        self.parallel = self._class("vllm/config/parallel.py", "ParallelConfig")
        self.executor = self._class("vllm/v1/executor/abstract.py", "Executor")
        self.request = self._class("vllm/v1/request.py", "Request")
        self.nixl_connector = find_class(nixl, *compat.CONNECTOR_NAMES)
        self.nixl_metadata = find_class(nixl, "NixlConnectorMetadata")
        self.nixl_scheduler = find_class(nixl, *compat.SCHEDULER_NAMES)
        self.nixl_worker = find_class(nixl, *compat.WORKER_NAMES)

    def _class(self, file: str, name: str) -> ClassView | None:
        return find_class((self.root / file,), name)

    @staticmethod
    @functools.cache
    def of(root: Path) -> Tree:
        return Tree(root)


Owner = Callable[[Tree], ClassView | None]


def _hooked(label: str, used_by: str, owner: Owner, name: str, wanted: Arguments) -> Seam:
    """The method is there, and its arguments begin with those wanted: whatever follows is passed on."""

    def misfit(root: Path) -> str | None:
        view = owner(Tree.of(root))
        found = None if view is None else view.arguments(name)
        if found is None:
            return "not there"
        return None if found[: len(wanted)] == wanted else f"({', '.join(found)})"

    return Seam(f"{label}.{name}({', '.join(wanted)})", used_by, misfit)


def _called(label: str, used_by: str, owner: Owner, name: str, wanted: Arguments) -> Seam:
    """As _hooked, and a call with just those arguments is complete."""
    hooked = _hooked(label, used_by, owner, name, wanted)

    def misfit(root: Path) -> str | None:
        view = owner(Tree.of(root))
        needed = 0 if view is None else view.needed(name)
        return hooked.misfit(root) or (f"needs {needed} arguments" if needed > len(wanted) else None)

    return Seam(f"calls {hooked.name}", used_by, misfit)


def _attribute(label: str, used_by: str, owner: Owner, *names: str) -> Seam:
    """One of the names is bound in the class body or by __init__."""

    def misfit(root: Path) -> str | None:
        view = owner(Tree.of(root))
        bound = frozenset() if view is None else view.attributes() | view.fields()
        return None if bound & set(names) else "not there"

    return Seam(f"{label}.{' or .'.join(names)}", used_by, misfit)


def _calls(label: str, used_by: str, owner: Owner, method: str, wanted: str, unwanted: str = "") -> Seam:
    """The method calls one and not the other."""

    def misfit(root: Path) -> str | None:
        view = owner(Tree.of(root))
        node = None if view is None else view.method(method)
        if node is None:
            return "not there"
        names = called(node)
        if unwanted in names:
            return f"calls {unwanted}"
        return None if wanted in names else f"does not call {wanted}"

    return Seam(f"{label}.{method} calls {wanted}", used_by, misfit)


def _runner(file: str, wanted: str, used_by: str = "release") -> Seam:
    """Something in the model runner's file calls it."""

    def misfit(root: Path) -> str | None:
        text: ast.Module = parse(root / file)
        return None if wanted in called(text) else "not there"

    return Seam(f"worker/{file.partition('worker/')[2]} calls {wanted}", used_by, misfit)


def _scheduler(tree: Tree) -> ClassView | None:
    return tree.scheduler


def _worker(tree: Tree) -> ClassView | None:
    return tree.nixl_worker


def _multi(tree: Tree) -> ClassView | None:
    return tree.multi


def _nixl(tree: Tree) -> ClassView | None:
    return tree.nixl_connector


def _output(tree: Tree) -> ClassView | None:
    return tree.output


SEAMS: tuple[Seam, ...] = (
    *(_hooked("Scheduler", "list", _scheduler, one, ("request",)) for one in layout.HOOKED),
    _hooked("Scheduler", "list", _scheduler, "_free_request", ("request", "delay_free_blocks")),
    _attribute("Scheduler", "list", _scheduler, "skipped_waiting", "deferred_waiting"),
    _attribute("Scheduler", "list", _scheduler, "requests"),
    _attribute("Scheduler", "list", _scheduler, "connector"),
    _attribute("NIXL connector", "state", _nixl, "engine_id"),
    _called("KVCacheManager", "list", lambda tree: tree.manager, "get_blocks", ("request_id",)),
    _attribute("KVCacheManager", "list", lambda tree: tree.manager, "block_pool"),
    _attribute("BlockPool", "list", lambda tree: tree.pool, "num_gpu_blocks"),
    _hooked(
        "KVConnectorBase_V1",
        "list, release",
        lambda tree: tree.base,
        layout.HOOKED_CONNECTOR,
        ("request", "blocks", "num_external_tokens"),
    ),
    _hooked(
        "NIXL scheduler",
        "fix, release",
        lambda tree: tree.nixl_scheduler,
        layout.HOOKED_CONNECTOR,
        ("request", "blocks", "num_external_tokens"),
    ),
    _called("Scheduler", "release", _scheduler, "has_requests", ()),
    _attribute("Scheduler", "release", _scheduler, "finished_req_ids"),
    _hooked("Scheduler", "release", _scheduler, "_update_from_kv_xfer_finished", ("kv_connector_output",)),
    _attribute("Scheduler", "release", _scheduler, "finished_recving_kv_req_ids"),
    _attribute("Scheduler", "release", _scheduler, "failed_recving_kv_req_ids"),
    _called("Scheduler", "release", _scheduler, "finish_requests", ("request_ids", "finished_status")),
    _attribute("KVConnectorOutput", "release", _output, "kv_connector_worker_meta"),
    _attribute("KVConnectorOutput", "release", _output, "finished_recving"),
    _hooked("KVConnectorBase_V1", "release", lambda tree: tree.base, "build_connector_worker_meta", ()),
    _hooked("KVConnectorWorkerMetadata", "release", lambda tree: tree.worker_meta, "aggregate", ("other",)),
    _calls("KVOutputAggregator", "release", lambda tree: tree.aggregator, "aggregate", "aggregate"),
    _runner(RUNNER, "build_connector_worker_meta"),
    _runner(RUNNER_V2, "build_connector_worker_meta").within("0.20.0", "0.33.0"),
    # The way of a worker's report: get_finished is there in all versions, and nobody calls it from 0.30 on.
    _runner(RUNNER, "get_finished", "fix, release").within("0.18.0", "0.29.0"),
    _runner(RUNNER_V2, "get_finished", "fix, release").within("0.18.0", "0.29.0"),
    _runner(RUNNER, "get_transfer_results").within("0.30.0", "0.33.0"),
    _runner(RUNNER_V2, "get_transfer_results").within("0.30.0", "0.33.0"),
    _hooked(
        "KVConnectorFactory",
        "release",
        lambda tree: tree.factory,
        "create_connector",
        ("config", "role", "kv_cache_config"),
    ),
    _calls("MultiConnector", "release", _multi, "__init__", "connector_cls", "create_connector"),
    _attribute("MultiConnector", "release", _multi, "_connectors"),
    _attribute("MultiKVConnectorWorkerMetadata", "release", lambda tree: tree.multi_meta, "metadata"),
    _hooked("MultiConnector", "release", _multi, "build_connector_worker_meta", ()),
    _called(
        "EngineCoreProc",
        "release",
        lambda tree: tree.engine,
        "_send_error_outputs_to_client",
        ("req_ids", "client_index"),
    ),
    _attribute("Executor", "release", lambda tree: tree.executor, "kv_output_aggregator"),
    _attribute("KVOutputAggregator", "release", lambda tree: tree.aggregator, "_recv_remaining_count"),
    _attribute("ParallelConfig", "release", lambda tree: tree.parallel, "rank"),
    _attribute("ParallelConfig", "release", lambda tree: tree.parallel, "world_size"),
    _attribute("KVConnectorBase_V1", "release", lambda tree: tree.base, "_vllm_config"),
    _attribute("KVConnectorBase_V1", "release", lambda tree: tree.base, "_connector_metadata"),
    _attribute("Request", "release", lambda tree: tree.request, "client_index"),
    _attribute("RequestStatus", "release", lambda tree: tree.status, "FINISHED_ERROR"),
    _attribute("NIXL connector", "release", _nixl, "connector_scheduler"),
    _attribute("NIXL connector", "release", _nixl, "connector_worker"),
    _hooked("NIXL connector", "fix, release", _nixl, "build_connector_meta", ("scheduler_output",)),
    _hooked("NIXL connector", "fix, release", _nixl, "start_load_kv", ("forward_context",)),
    _attribute("NIXL scheduler", "fix, release", lambda tree: tree.nixl_scheduler, "_reqs_need_recv"),
    _attribute("NIXL metadata", "fix, release", lambda tree: tree.nixl_metadata, "reqs_to_recv"),
    _attribute("NIXL worker", "fix, release", _worker, "_recving_metadata"),
    _attribute("NIXL worker", "fix, release", _worker, "_recving_transfers"),
    _hooked("NIXL worker", "fix, release", _worker, "_read_blocks_for_req", ("req_id", "meta")),
    _hooked("NIXL worker", "release", _worker, "_read_blocks", ()),
    _hooked("NIXL worker", "release", _worker, "_handle_failed_transfer", ("req_id", "handle")),
    _hooked("NIXL worker", "fix, release", _worker, "get_finished", ()),
    _hooked("NIXL worker", "release", _worker, "get_transfer_results", ()).within("0.30.0", "0.33.0"),
    _attribute("KVConnectorOutput", "release", _output, "failed_recving").within("0.30.0", "0.33.0"),
)


def table() -> str:
    """Markdown: each seam, who uses it, and the versions of those that are here in which it fits."""
    here = [(version, root) for version in ALL if (root := locate_tree(version)) is not None]
    rows = ["| seam | for | vLLM |", "|---|---|---|"]
    for seam in SEAMS:
        fits = [version for version, root in here if seam.misfit(root) is None]
        rows.append(f"| `{seam.name}` | {seam.used_by} | {_spans(fits, [version for version, _ in here])} |")
    return "\n".join(rows)


def _spans(some: list[str], of_all: list[str]) -> str:
    """Neighbours in the list of all as `first to last`."""
    spans: list[list[str]] = []
    for version in some:
        before = of_all.index(version) - 1
        if spans and before >= 0 and spans[-1][-1] == of_all[before]:
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in spans) or "none"


if __name__ == "__main__":
    print(table())
