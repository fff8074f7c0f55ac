"""Up and down of a bed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed import build, config, host, image, pki
from tests.bed.place import REPOSITORY, BedError, Place


@dataclass(frozen=True, slots=True)
class Up:
    """A running bed. fresh: this call started it; seconds: that it took to start, without the builds."""

    place: Place
    kube: build.Kube
    fresh: bool
    seconds: float

    @property
    def environment(self) -> dict[str, str]:
        """What a command in the bed is given: see cluster.py."""
        state = {host.ENV_STATE: str(self.place.state)}
        return {"STANCH_BED": self.place.name, "KUBECONFIG": str(self.place.kubeconfig), **state}


def up(place: Place) -> Up:
    """A ready bed: the one that runs, if it is this checkout's, else a new one, after cleaning up what a
    crashed one left. Raises BedError, with nothing left behind."""
    lack = host.missing()
    if lack is not None:
        raise BedError(lack)
    kube = build.kube()
    with _alone(place):
        if _runs(place, kube):
            return Up(place, kube, False, 0.0)
        if left := host.leftovers(place):
            _say(f"cleaning up what an earlier bed {place.name!r} left: {', '.join(left)}")
            host.clean(place)
        began = time.monotonic()
        try:
            _start(place, kube)
        except BaseException:
            host.clean(place)
            raise
        return Up(place, kube, True, time.monotonic() - began)


def down(place: Place) -> bool:
    """End the bed and remove all of it; whether there was anything."""
    with _alone(place):
        _refuse_others(place)
        left = host.leftovers(place)
        host.clean(place)
    return bool(left)


def load(place: Place, archive: Path) -> None:
    """Make the images of a docker archive known to the bed's container runtime."""
    command = host.enter(place, ["ctr", "-n", "k8s.io", "images", "import", str(archive)], whole=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{archive} cannot be loaded: {done.stderr.strip()}")


def images(place: Place) -> list[str]:
    """The names of the images that the bed's container runtime has."""
    command = host.enter(place, ["ctr", "-n", "k8s.io", "images", "list", "-q"], whole=True)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _start(place: Place, kube: build.Kube) -> None:
    place.state.mkdir(parents=True)
    place.log.mkdir()
    place.state.joinpath("checkout").write_text(str(REPOSITORY))
    pki.write(place.pki)
    config.write(place)
    pause = place.state / "pause.tar"
    image.write(pause, config.PAUSE_IMAGE, [image.files({"pause": kube.program("pause")})], ["/pause"])
    others = [image.host(place.state / "host.tar"), image.engine(place.state / "engine.tar")]
    archives = [str(pause), *(str(one.archive) for one in others)]
    spec = {"version": kube.version, "programs": str(kube.programs), "images": archives}
    place.spec.write_text(json.dumps(spec))
    host.make_cgroups(place)
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (place.log / "bed.log").open("ab") as log:
        first = subprocess.Popen(
            ["unshare", *spaces, sys.executable, "-m", host.FIRST, str(place.state)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            # It outlives us, and Ctrl-C in our terminal is not for it.
            start_new_session=True,
        )
    while not place.ready.exists():
        if place.failed.exists():
            raise BedError(f"bed {place.name!r} did not start: {place.failed.read_text()}")
        if first.poll() is not None:
            words = (place.log / "bed.log").read_text().splitlines()[-3:]
            raise BedError(f"bed {place.name!r} ended while starting: {' / '.join(words)}")
        time.sleep(0.05)


def _runs(place: Place, kube: build.Kube) -> bool:
    """Whether it is up, whole and of these components. Raises BedError where it is another checkout's."""
    if host.first(place) is None:
        return False
    _refuse_others(place)
    whole = place.ready.exists() and not place.failed.exists()
    return whole and json.loads(place.spec.read_text())["programs"] == str(kube.programs)


def _refuse_others(place: Place) -> None:
    try:
        owner = place.state.joinpath("checkout").read_text()
    except FileNotFoundError:
        return
    if owner != str(REPOSITORY) and host.first(place) is not None and Path(owner).is_dir():
        raise BedError(
            f"bed {place.name!r} is running for the checkout {owner}: end it there with `make cluster-down`, "
            "or use a bed of your own, with BED=another-name"
        )


@contextmanager
def _alone(place: Place) -> Iterator[None]:
    """Refuses, rather than waits, where somebody else is starting or ending this very bed."""
    place.lock.parent.mkdir(parents=True, exist_ok=True)
    with place.lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError(
                f"bed {place.name!r} is being started or ended by another process: wait for it, or use a bed "
                "of your own, with BED=another-name"
            ) from None
        yield


def run(found: Up, command: Sequence[str]) -> int:
    """Run a command in the bed's network; its exit code."""
    environment = {**os.environ, **found.environment}
    return subprocess.run(host.enter(found.place, command), env=environment, check=False).returncode


@contextmanager
def guarded(place: Place) -> Iterator[None]:
    """The bed ends with this, and also when this process is killed: another one waits for that."""
    command = [sys.executable, "-m", "tests.bed", "--name", place.name, "guard"]
    # Where we run in a bed ourselves, it outlives that one as well, to end ours.
    environment = {name: value for name, value in os.environ.items() if name != host.ENV_STATE}
    # Ctrl-C in our terminal is not for it. Nobody but us has the other end of its input.
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, cwd=REPOSITORY, env=environment, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate()
    if guard.returncode:
        raise BedError(f"bed {place.name!r} was not ended; see above")


def _say(line: str) -> None:
    print(f"bed: {line}", file=sys.stderr, flush=True)
