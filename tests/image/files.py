"""What is in an image: its files as a container sees them, and its settings; from a docker archive."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_GONE = ".wh."
_ALL_GONE = ".wh..wh..opq"


@dataclass(frozen=True)
class File:
    """One entry of the image. layer: the number of the layer that it is from, 0 the base's first."""

    info: tarfile.TarInfo
    layer: int
    _tar: tarfile.TarFile

    def read(self) -> bytes:
        """Its content; of a link that of the file it names in its own layer."""
        handle = self._tar.extractfile(self.info)
        return b"" if handle is None else handle.read()


@dataclass(frozen=True)
class Contents:
    """files: by path, without the leading slash. config: the image's, as Docker has it (config, history)."""

    files: dict[str, File]
    config: dict[str, Any]

    def under(self, directory: str) -> Iterator[tuple[str, File]]:
        """The entries below a directory."""
        return ((path, file) for path, file in self.files.items() if path.startswith(f"{directory}/"))


@contextmanager
def contents(archive: Path) -> Iterator[Contents]:
    """Of a docker archive with one image (`docker save`, `buildah push docker-archive:`)."""
    with tarfile.open(archive) as outer, ExitStack() as stack:

        def member(name: str) -> Any:
            handle = outer.extractfile(name)
            assert handle is not None, f"{archive} has no file {name}"
            return handle

        (manifest,) = json.load(member("manifest.json"))
        layers = [stack.enter_context(tarfile.open(fileobj=member(name))) for name in manifest["Layers"]]
        files: dict[str, File] = {}
        for number, layer in enumerate(layers):
            for info in layer:
                _put(files, str(PurePosixPath("/", info.name))[1:], File(info, number, layer))
        yield Contents(files, json.load(member(manifest["Config"])))


def _put(files: dict[str, File], path: str, file: File) -> None:
    """A layer over those before it; a file `.wh.NAME` takes NAME away."""
    parent, _, name = path.rpartition("/")
    if not name.startswith(_GONE):
        files[path] = file
        return
    gone = parent if name == _ALL_GONE else f"{parent}/{name.removeprefix(_GONE)}".lstrip("/")
    for old in [one for one in files if one == gone or one.startswith(f"{gone}/")]:
        if files[old].layer < file.layer and (old != gone or name != _ALL_GONE):
            del files[old]
