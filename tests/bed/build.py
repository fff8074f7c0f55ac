"""What the bed is made of, built from published Go modules once and kept: `python -m tests.bed build`.

Each result is a directory whose name ends with the hash of its recipe and that appears by a rename when it
is complete. An interrupted build leaves a `.part-*`, which the next one removes; what Go has compiled until
then is in Go's own cache, so the next one goes on from there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.bed.place import HERE, BedError, cache

COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
_MODULE = HERE / "go"
OLDEST = HERE / "go-oldest"
_HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
_LWS_MODULE = HERE / "go-lws"


@dataclass(frozen=True, slots=True)
class Kube:
    """One built Kubernetes. version: as in go.mod, without the v; programs: a directory, a link each."""

    version: str
    programs: Path

    def program(self, name: str) -> Path:
        return self.programs / name


def kube() -> Kube:
    """The node's components, kubectl and the pause program. Cold about eight minutes on two cores."""
    version = module_version(_MODULE)

    def make(part: Path) -> None:
        _go_build(_MODULE, "./kube", part / "kube", version)
        _go_build(_MODULE, "./pause", part / "pause", version)
        for name in COMPONENTS:
            (part / name).symlink_to("kube")

    return Kube(version, made(f"kube-{version}", module_recipe(_MODULE), make))


def oldest() -> Path:
    """The API server of the oldest supported Kubernetes. Cold some four minutes on two cores."""
    version = module_version(OLDEST)

    def make(part: Path) -> None:
        _go_build(OLDEST, ".", part / "kube-apiserver", version)

    return made(f"oldest-{version}", module_recipe(OLDEST), make) / "kube-apiserver"


def helm() -> Path:
    """The helm program."""

    def make(part: Path) -> None:
        _run(["go", "install", "-trimpath", "-ldflags", "-s -w", _HELM], HERE, {"GOBIN": str(part)})

    return made(f"helm-{_HELM.rpartition('@v')[2]}", _HELM, make) / "helm"


def lws() -> Path:
    """A directory with `lws`, the controller of LeaderWorkerSets, and its kinds in `crds`."""
    name = "sigs.k8s.io/lws"
    version = module_version(_LWS_MODULE, name)

    def make(part: Path) -> None:
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(part / "lws"), f"{name}/cmd"]
        _run(command, _LWS_MODULE)
        # What was just built is in Go's module cache.
        listed = ["go", "list", "-m", "-f", "{{.Dir}}", name]
        found = subprocess.run(listed, cwd=_LWS_MODULE, check=True, capture_output=True, text=True)
        (part / "crds").mkdir()
        for file in Path(found.stdout.strip()).glob("config/crd/bases/*.yaml"):
            (part / "crds" / file.name).write_text(file.read_text())

    return made(f"lws-{version}", module_recipe(_LWS_MODULE), make)


def module_version(module: Path, name: str = "k8s.io/kubernetes") -> str:
    """The version of that module in a go.mod."""
    line = rf"^\t{re.escape(name)} v(\S+)( // indirect)?$"
    found = re.search(line, (module / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BedError(f"{module / 'go.mod'} asks for no {name}")
    return found[1]


def module_recipe(module: Path) -> str:
    """Everything in the module's directory, as one text."""
    files = sorted(path for path in module.rglob("*") if path.is_file())
    return "".join(f"{path.relative_to(module)}\n{path.read_text()}\n" for path in files)


def _go_build(module: Path, package: str, out: Path, version: str) -> None:
    major, minor, *_ = version.split(".")
    at = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s", "-w", *(f"-X {at}.{key}={value}" for key, value in stamps.items())])
    _run(["go", "build", "-trimpath", "-ldflags", flags, "-o", str(out), package], module)


def _run(command: Sequence[str], directory: Path, more: Mapping[str, str] | None = None) -> None:
    if shutil.which("go") is None:
        raise BedError("the Go toolchain is needed to build the bed's Kubernetes: put `go` on the PATH")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", **(more or {})}
    # Both cores for minutes: whoever works on the machine comes first.
    done = subprocess.run(["nice", "-n", "10", *command], cwd=directory, env=environment, check=False)
    if done.returncode:
        raise BedError(
            f"`{' '.join(command[:2])}` in {directory} ended with exit code {done.returncode}; see above"
        )


def made(name: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """The directory `name`-hash in the cache, made by `make` in a part directory unless it is there."""
    full = f"{name}-{sha256(recipe.encode()).hexdigest()[:12]}"
    final, part = cache() / full, cache() / f".part-{full}"
    if final.is_dir():
        return final
    with _lock(name):
        if final.is_dir():
            return final
        shutil.rmtree(part, ignore_errors=True)
        print(f"bed: building {name} (once; kept in {cache()})", file=sys.stderr, flush=True)
        started = time.monotonic()
        part.mkdir(parents=True)
        try:
            make(part)
            part.rename(final)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        print(f"bed: {name} took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return final


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """One builder of a thing at a time; the kernel lifts the lock of one that dies."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f".{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
