"""Stanch's own image without a registry: by buildah from the Dockerfile, on a base of Debian's packages.

Both are kept in the cache, the image under the hash of all that it is built from. The build reaches the
package indexes as this machine's pip and apt do, also where a command runs in the network of a bed.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as once
from hashlib import sha256
from pathlib import Path

from tests.bed.build import made
from tests.bed.image import Image
from tests.bed.place import REPOSITORY, BedError, cache

NAME = "stanch.test/stanch"
BASE_NAME = "localhost/stanch-base"
_RESULT = "image-operator"
_SUITE = "bookworm"
# As in the slim images of Python; venv comes apart in Debian.
_PACKAGES = "python3,python3-venv,ca-certificates"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
# Of the machine that it was made on.
_CLEAN = 'cd "$1" && truncate --size=0 etc/apt/sources.list etc/resolv.conf etc/hostname'
_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_KEPT = 4
_STORE_BYTES = 3 << 30
_NEEDED = ("buildah", "mmdebstrap")


@dataclass(frozen=True, slots=True)
class Built:
    """The image, and what it cost. seconds: of the build, the base not counted; base_bytes, bytes: of the
    base's layer and of all layers, uncompressed."""

    image: Image
    seconds: float
    base_bytes: int
    bytes: int


def missing() -> str | None:
    """One sentence on what the machine lacks to build it; None where it has all."""
    if os.geteuid() != 0:
        return "building Stanch's image without a registry needs root"
    if lacking := [program for program in _NEEDED if shutil.which(program) is None]:
        words = " ".join(lacking)
        return f"Stanch's image needs more programs: apt-get install --no-install-recommends {words}"
    return None


def operator_name() -> str:
    """The image's name, as this checkout makes it now."""
    return _name(_sources())


def operator_image() -> Image:
    """The image as a docker archive, built unless it is there. Raises BedError."""
    return operator_built().image


def operator_built() -> Built:
    """The same, with its time and sizes. A minute where only the base is there, 10 s with the packages."""
    if lack := missing():
        raise BedError(lack)
    sources = _sources()
    base = made("image-base", _base_recipe(), _make_base) / "base.tar"

    def make(part: Path) -> None:
        _build(part, sources, base)

    directory = made(_RESULT, _recipe(sources), make)
    # Used now: see _forget.
    os.utime(directory)
    cost = json.loads((directory / "cost.json").read_text())
    image = Image(_name(sources), directory / "image.tar")
    return Built(image, cost["seconds"], cost["base_bytes"], cost["bytes"])


@once
def _sources() -> dict[str, bytes]:
    """What the build sees, by its path: what .dockerignore lets in; one state of it for a process."""
    wanted = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    found = {}
    for top in ("Dockerfile", ".dockerignore", *wanted):
        whole = REPOSITORY / top
        for path in sorted(whole.rglob("*")) if whole.is_dir() else [whole]:
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(REPOSITORY))] = path.read_bytes()
    return found


def _recipe(sources: dict[str, bytes]) -> str:
    digests = [f"{path} {sha256(data).hexdigest()}" for path, data in sorted(sources.items())]
    return "\n".join([_base_recipe(), Path(__file__).read_text(), *digests])


def _name(sources: dict[str, bytes]) -> str:
    return f"{NAME}:{sha256(_recipe(sources).encode()).hexdigest()[:12]}"


def _base_recipe() -> str:
    return "\n".join([_SUITE, _PACKAGES, *_LEFT_OUT, _CLEAN])


def _make_base(part: Path) -> None:
    left_out = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    command = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={_PACKAGES}", *left_out]
    _run([*command, f"--customize-hook={_CLEAN}", _SUITE, str(part / "base.tar")])


def _build(part: Path, sources: dict[str, bytes], base: Path) -> None:
    started = time.monotonic()
    store = _store()
    where = ["--root", str(store / "root"), "--runroot", str(store / "run"), "--storage-driver", "overlay"]
    buildah = ["buildah", *where]
    base_name = f"{BASE_NAME}:{sha256(_base_recipe().encode()).hexdigest()[:12]}"
    # Beside the archive of the base, which is linked into it.
    with tempfile.TemporaryDirectory(dir=part) as directory:
        context = Path(directory, "context")
        for name, data in sources.items():
            target = context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        _import_base(buildah, base_name, base, Path(directory, "base"))
        command = [
            *buildah,
            "build",
            "--quiet",
            "--isolation=chroot",
            "--pull=never",
            "--layers",
            "--timestamp=0",
        ]
        command += [
            f"--build-arg=BASE={base_name}",
            *_secrets(Path(directory)),
            f"--tag={NAME}:built",
            str(context),
        ]
        _run(command)
        archive = part / "image.tar"
        _run([*buildah, "push", "--quiet", f"{NAME}:built", f"docker-archive:{archive}:{_name(sources)}"])
    layers = layer_sizes(archive)
    cost = {"seconds": time.monotonic() - started, "base_bytes": layers[0], "bytes": sum(layers)}
    (part / "cost.json").write_text(json.dumps(cost))
    over = (cost["bytes"] - cost["base_bytes"]) / 1e6
    print(f"bed: Stanch's image is {over:.0f} MB over its base of {layers[0] / 1e6:.0f} MB", file=sys.stderr)
    _forget()


def layer_sizes(archive: Path) -> list[int]:
    """Bytes of each layer in a docker archive, the base's first."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        (one,) = json.load(manifest)
        return [tar.getmember(layer).size for layer in one["Layers"]]


def _store() -> Path:
    """buildah's own directory, where a build finds the packages that an earlier one installed. Each build
    adds some 40 MB; it starts anew when it has grown too large."""
    store = cache() / "buildah"
    if sum(path.lstat().st_blocks * 512 for path in store.rglob("*")) > _STORE_BYTES:
        shutil.rmtree(store)
    store.mkdir(exist_ok=True)
    return store


def _import_base(buildah: Sequence[str], name: str, archive: Path, context: Path) -> None:
    if subprocess.run([*buildah, "inspect", name], capture_output=True, check=False).returncode == 0:
        return
    context.mkdir()
    os.link(archive, context / "base.tar")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (context / "Dockerfile").write_text(f"FROM scratch\nADD base.tar /\nENV PATH={path}\n")
    _run([*buildah, "build", "--quiet", "--timestamp=0", f"--tag={name}", str(context)])


def _secrets(directory: Path) -> list[str]:
    """How this machine's pip reaches its index, as the build's secrets: no layer and no history has them."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings: dict[str, str] = {}
    # What the environment says (`:env:`) counts more than the files.
    for line in sorted(said.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    kept = {key: settings[key] for key in _PIP if key in settings}
    secrets = []
    if "cert" in settings:
        kept["cert"] = "/run/secrets/ca.crt"
        secrets.append(f"--secret=id=ca.crt,src={settings['cert']}")
    file = directory / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {_lines(value)}\n" for key, value in kept.items()))
    return [*secrets, f"--secret=id=pip.conf,src={file}"]


def _lines(value: str) -> str:
    """Several values of one key, each on a line of its own."""
    return value.replace("\n", "\n  ")


def _forget() -> None:
    """Remove all images but those that were used last."""
    found = sorted(cache().glob(f"{_RESULT}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in found[_KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def _run(command: Sequence[str]) -> None:
    """In a mount namespace of its own: what it mounts goes with it, however it ends."""
    done = subprocess.run(
        [*_outside(), "unshare", "--mount", "nice", "-n", "10", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BedError(f"`{' '.join(command[:1])}` ended with exit code {done.returncode}:\n{words}")


def _outside() -> list[str]:
    """What gives a command the machine's network. In that of a bed we are below the process that entered it
    (`tests.bed run`), which is outside."""
    ours, pid = Path("/proc/self/ns/net").readlink(), os.getppid()
    if "STANCH_BED" not in os.environ:
        return []
    while pid > 1:
        if Path(f"/proc/{pid}/ns/net").readlink() != ours:
            return ["nsenter", f"--net=/proc/{pid}/ns/net"]
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise BedError(
        "Stanch's image is not built yet, and nothing outside of the bed's network is above us: "
        "build it first with `make cluster-build`"
    )
