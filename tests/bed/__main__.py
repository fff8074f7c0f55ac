"""Command line of the bed; the Makefile's cluster targets are these."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.bed import build, host, image, node, product
from tests.bed.place import DEFAULT_NAME, BedError, Place

_HELP = """\
up      start the bed (built first where it is not), or find it running
down    end it and remove everything of it
status  what there is of it; exit code 0 when it is up and whole
run     -- COMMAND: run a command in the bed's network, with KUBECONFIG set; a bed that was not up is started
        for it and ended after it
kubectl ARGUMENTS: kubectl in the bed
build   only build what the bed is made of
helm    print where the helm program is (built first where it is not)
image   FILE: write the simulated engine's image as a docker archive, for another cluster; prints its name
stanch  FILE: the same with Stanch's own image, built first where it is not
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bed",
        description="A real single-node Kubernetes for tests.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default=DEFAULT_NAME, help="which bed; several may be up at a time")
    parser.add_argument("verb", choices=sorted(_VERBS))
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(arguments)
    rest = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    try:
        return _VERBS[options.verb](Place.of(options.name), rest)
    except BedError as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1


def _up(place: Place, _: Sequence[str]) -> int:
    found = node.up(place)
    state = f"is up after {found.seconds:.1f} s" if found.fresh else "is up already"
    print(f"bed {place.name!r} {state}: Kubernetes {found.kube.version}")
    print(f"  {Path(sys.executable).name} -m tests.bed --name {place.name} kubectl get pods -A")
    return 0


def _down(place: Place, _: Sequence[str]) -> int:
    print(f"bed {place.name!r}: " + ("removed" if node.down(place) else "there was none"))
    return 0


def _status(place: Place, _: Sequence[str]) -> int:
    left = host.leftovers(place)
    whole = place.ready.exists() and not place.failed.exists() and host.first(place) is not None
    state = "up" if whole else "broken; `down` or `up` cleans it up" if left else "not there"
    print(f"bed {place.name!r}: {state}")
    for line in left:
        print(f"  {line}")
    if place.failed.exists():
        print(f"  {place.failed.read_text()}")
    return 0 if whole else 1


def _run(place: Place, command: Sequence[str]) -> int:
    if not command:
        raise BedError("run: which command?")
    found = node.up(place)
    with node.guarded(place) if found.fresh else nullcontext():
        return node.run(found, command)


def _guard(place: Place, _: Sequence[str]) -> int:
    """End the bed when nobody holds the other end of the input any more (`run` starts this)."""
    sys.stdin.read()
    node.down(place)
    return 0


def _kubectl(place: Place, arguments: Sequence[str]) -> int:
    kubectl = str(build.kube().program("kubectl"))
    command = host.enter(place, [kubectl, f"--kubeconfig={place.kubeconfig}", *arguments])
    os.execvp(command[0], command)


def _build(_: Place, __: Sequence[str]) -> int:
    print(build.kube().programs)
    print(build.oldest())
    print(build.lws())
    print(build.helm())
    return 0


def _helm(_: Place, __: Sequence[str]) -> int:
    print(build.helm())
    return 0


def _image(_: Place, arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        raise BedError("image: to which one file?")
    print(image.engine(Path(arguments[0])).name)
    return 0


def _stanch(_: Place, arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        raise BedError("stanch: to which one file?")
    found = product.operator_image()
    shutil.copyfile(found.archive, arguments[0])
    print(found.name)
    return 0


_VERBS = {
    "up": _up,
    "down": _down,
    "status": _status,
    "run": _run,
    "guard": _guard,
    "kubectl": _kubectl,
    "build": _build,
    "helm": _helm,
    "image": _image,
    "stanch": _stanch,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
