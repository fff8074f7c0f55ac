"""Container images without a registry and without Docker: docker archives of layers that are tar files.

The simulated engine's image is this machine's own Python with its libraries, aiohttp, and the code of this
checkout. Its name ends with the hash of that code, so that a pod never runs another one.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from tests.bed.build import made
from tests.bed.place import REPOSITORY, BedError

ENGINE_NAME = "stanch.test/engine"
HOST_IMAGE = "stanch.test/host:1"
_SITE = Path("opt/site-packages")
# Not where the kit's volume is mounted.
_CODE = Path("opt/checkout")
# So that manifests that start vLLM start the simulation. The kit's PYTHONPATH takes the place of the image's.
_VLLM = Path("usr/local/bin/vllm")
_VLLM_SCRIPT = """#!{python}
import runpy, sys
sys.path += ["/{code}", "/{site}"]
runpy.run_module("stanch.edge.demo.vllm", run_name="__main__", alter_sys=True)
"""
_LIBRARY = re.compile(r"(?:=>\s+)?(/\S+)\s+\(0x")
# Parts of the standard library that no engine imports.
_LEFT_OUT: tuple[str, ...] = (
    "__pycache__",
    "config-*",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
)
_LEFT_OUT += ("test", "tests", "tkinter", "turtledemo", "*.a")


@dataclass(frozen=True, slots=True)
class Image:
    """A docker archive, and the name under which a pod asks for what is in it."""

    name: str
    archive: Path


def engine(archive: Path) -> Image:
    """Write the image of the simulated engine to `archive`."""
    found = Image(engine_name(), archive)
    path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": f"/{_CODE}:/{_SITE}", "PYTHONUNBUFFERED": "1"}
    write(archive, found.name, [_base(), _code()], ["python3"], environment)
    return found


def host(archive: Path) -> Image:
    """Write an image of next to nothing, for containers that mount the node's own /usr: see vllm.py."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        _skeleton(root)
        for link in ("bin", "lib", "lib64", "sbin"):
            (root / link).symlink_to(f"usr/{link}")
        write(archive, HOST_IMAGE, [_tar(root)], [], {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin"})
    return Image(HOST_IMAGE, archive)


def engine_name() -> str:
    """The simulated engine's image as this checkout would make it now."""
    return f"{ENGINE_NAME}:{sha256(b''.join(_sources().values()) + _base_recipe().encode()).hexdigest()[:12]}"


def write(
    archive: Path,
    name: str,
    layers: Sequence[bytes],
    entrypoint: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> None:
    """A docker archive (the format of `docker save`) of these layers, each an uncompressed tar file."""
    digests = [sha256(layer).hexdigest() for layer in layers]
    settings = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {
            "Entrypoint": list(entrypoint),
            "Env": [f"{key}={value}" for key, value in (environment or {}).items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    config = json.dumps(settings).encode()
    config_name = f"{sha256(config).hexdigest()}.json"
    names = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(archive, "w") as tar:
        for member, data in [
            (config_name, config),
            *zip(names, layers, strict=True),
            ("manifest.json", manifest),
        ]:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def files(sources: Mapping[str, Path]) -> bytes:
    """A layer of these files: path in the image to path here. Directories are taken whole."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, source in sources.items():
            # What a link names may lie elsewhere here; in the image the file itself stands there.
            tar.add(source.resolve(), arcname=member, filter=_plain)
    return out.getvalue()


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that the same files make the same layer."""
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = 0
    return info


def _base() -> bytes:
    """The layer of Python, its libraries and aiohttp; made once."""
    layer = made("image-python", _base_recipe(), _make_base) / "layer.tar"
    return layer.read_bytes()


def _base_recipe() -> str:
    packed = sorted(f"{one.name} {one.version}" for one in _distributions("aiohttp"))
    return f"{sys.version}\n{sys.base_prefix}\n{packed}\n{Path(__file__).read_text()}"


def _make_base(part: Path) -> None:
    root = part / "root"
    python = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    root.mkdir()
    _skeleton(root)
    # At the paths that they have here: an interpreter finds its library by its own place.
    _copy_tree(standard, root / standard.relative_to("/"))
    for path in _distribution_files("aiohttp"):
        target = root / _SITE / path[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path[1], target)
    binaries = [python, *root.rglob("*.so")]
    for library in _libraries(binaries):
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
    target = root / python.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(python, target)
    for link in {"python3", "python"} - {python.name}:
        target.with_name(link).symlink_to(python.name)
    _compile(root)
    part.joinpath("layer.tar").write_bytes(_tar(root))
    shutil.rmtree(root)


def _skeleton(root: Path) -> None:
    """What every container expects to find."""
    for directory in ("tmp", "etc", "proc", "sys", "dev"):
        (root / directory).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/none\nnobody:x:65534:65534:nobody:/:/none\n")


def _code() -> bytes:
    """The layer of this checkout's own code, compiled."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, data in _sources().items():
            target = root / _CODE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        _compile(root)
        program = root / _VLLM
        program.parent.mkdir(parents=True)
        program.write_text(_VLLM_SCRIPT.format(python=Path(sys.executable).resolve(), code=_CODE, site=_SITE))
        program.chmod(0o755)
        return _tar(root)


@cache
def _sources() -> dict[str, bytes]:
    """The Python files of both packages, by their path in the image; one state of them for a process."""
    found = {}
    for top in (REPOSITORY / "operator", REPOSITORY / "connector"):
        for path in sorted(top.rglob("*.py")):
            found[str(path.relative_to(top))] = path.read_bytes()
    return found


def _tar(root: Path) -> bytes:
    return files({".": root})


def _compile(root: Path) -> None:
    """Beside every source what Python would compile at each start of a container."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(root, stripdir=root, prependdir="/", quiet=2, invalidation_mode=unchecked)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))


def _distributions(name: str) -> Iterator[metadata.Distribution]:
    """An installed distribution and those that it needs."""
    waiting, seen = [name], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            found = metadata.distribution(one)
        except metadata.PackageNotFoundError:
            # Wanted by another Python or platform only; what is really missing shows when an engine starts.
            continue
        yield found
        needs = [need for need in found.requires or [] if "extra ==" not in need]
        waiting += [re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0] for need in needs]


def _distribution_files(name: str) -> Iterator[tuple[Path, Path]]:
    """Their files: path in site-packages, path here."""
    for found in _distributions(name):
        for path in found.files or []:
            here = Path(str(path.locate()))
            if ".." not in path.parts and here.suffix != ".pyc" and here.is_file():
                yield Path(path), here


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    """The shared libraries that these need, and the loader, by ldd."""
    found: set[Path] = set()
    for binary in binaries:
        said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        if "not found" in said:
            raise BedError(f"{binary} needs a library that is not here:\n{said}")
        found |= {Path(path) for path in _LIBRARY.findall(said)}
    return sorted(found)
