"""When the pods of a Service were ready, as everybody who routes by its EndpointSlices sees it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import suppress

from tests.bed.cluster import ApiError, Namespace

_EVERY_S = 0.05


class Endpoints:
    """A context: while it is open, the slices are looked at twenty times a second."""

    def __init__(self, namespace: Namespace, service: str) -> None:
        self._namespace = namespace
        where = f"/apis/discovery.k8s.io/v1/namespaces/{namespace.name}/endpointslices"
        self._path = f"{where}?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        self._changes: dict[str, list[tuple[float, bool]]] = defaultdict(list)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Endpoints:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def changes(self, pod: str) -> list[tuple[float, bool]]:
        """(time.time(), ready) of its first sight and of each change after it."""
        return list(self._changes[pod])

    def ready(self, pod: str) -> bool:
        changes = self.changes(pod)
        return bool(changes) and changes[-1][1]

    def unready(self, pod: str) -> tuple[float, float]:
        """From when to when it was not ready; it was so once."""
        changes = self.changes(pod)
        assert [ready for _, ready in changes] == [True, False, True], changes
        return changes[1][0], changes[2][0]

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            # An API server that answers late tells nothing of the pods.
            with suppress(OSError, ApiError):
                self._look()

    def _look(self) -> None:
        slices = self._namespace.cluster.api(self._path)["items"]
        now = time.time()
        seen = {
            one["targetRef"]["name"]: bool(one["conditions"].get("ready"))
            for found in slices
            for one in found.get("endpoints") or []
        }
        for pod in {*seen, *self._changes}:
            ready = seen.get(pod, False)
            changes = self._changes[pod]
            if not changes or changes[-1][1] is not ready:
                changes.append((now, ready))
