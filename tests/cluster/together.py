"""Scenarios that are played side by side, each in a namespace of its own: most of their time is waiting."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager

from tests.bed.cluster import Cluster, Namespace
from tests.cluster.operators import Operator
from tests.cluster.scenes import Scene

Play = Callable[[Scene], None]
# The operator that acts in a namespace, for as long as its scenario is played.
Operated = Callable[[Namespace], AbstractContextManager[Operator]]
_AT_ONCE = 5


class FailedError(AssertionError):
    """A scenario failed; the message has what the cluster says of it."""


class Played:
    """Scenarios under way. result(): waits for one, and raises what it raised."""

    def __init__(self, futures: dict[Play, Future[None]]) -> None:
        self._futures = futures

    def result(self, play: Play) -> None:
        self._futures[play].result()

    def wait(self) -> None:
        """Until none is under way."""
        wait(self._futures.values())


def scenario(play: Play) -> Callable[[Played], None]:
    """Makes a test of it, which waits for its end."""

    def test(played: Played) -> None:
        played.result(play)

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    test.play = play  # type: ignore[attr-defined]
    return test


@contextmanager
def playing(cluster: Cluster, operated: Operated, tests: Iterable[object]) -> Iterator[Played]:
    """Play those of the tests that are scenarios."""
    plays = [play for test in tests if (play := getattr(test, "play", None)) is not None]
    with ThreadPoolExecutor(_AT_ONCE) as stage:
        futures = {play: stage.submit(_play, cluster, operated, play) for play in plays}
        try:
            yield Played(futures)
        finally:
            for future in futures.values():
                future.cancel()


def _play(cluster: Cluster, operated: Operated, play: Play) -> None:
    namespace = Namespace(cluster, f"test-{uuid.uuid4().hex[:8]}")
    namespace.make()
    try:
        with operated(namespace) as operator:
            scene = Scene(namespace, operator)
            try:
                play(scene)
            except Exception as error:
                log = "\n".join(str(line) for line in operator.lines() if namespace.name in str(line))
                story = f"{scene.story()}\n{namespace.story()}\n{log}"
                raise FailedError(f"{play.__name__}: {type(error).__name__}: {error}\n{story}") from error
    finally:
        namespace.remove()
