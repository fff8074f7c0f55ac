"""What is to be copied: the package's files and a .dist-info by which Python finds the plug-in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import stanch_connector
from stanch_connector.install import names

_SKIPPED = ("__pycache__",)
# What a .dist-info holds that says how this copy was installed, not what it is.
_LOCAL = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "WHEEL")
_UNKNOWN_VERSION = "0+source"


class InstallError(Exception):
    """str() is the sentence for the person or the pod's log."""


def wanted() -> tuple[str, dict[str, bytes]]:
    """The version, and every file by its path in the volume. Raises InstallError."""
    root = Path(stanch_connector.__file__).parent
    files = package_files(root)
    version, info = dist_info(_find)
    folder = f"{names.DISTRIBUTION}-{version.replace('-', '_')}.dist-info"
    files.update({f"{folder}/{name}": content for name, content in info.items()})
    rows = [f"{path},sha256={_b64(content)},{len(content)}\n" for path, content in sorted(files.items())]
    files[f"{folder}/RECORD"] = f"{''.join(rows)}{folder}/RECORD,,\n".encode()
    return version, files


def package_files(root: Path) -> dict[str, bytes]:
    """The package's own files, compiled ones left out."""
    if not root.is_dir():
        raise InstallError(f"{names.PACKAGE} is not installed as a folder ({root}): nothing to copy")
    found = {}
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and path.suffix != ".pyc" and not set(inside.parts) & set(_SKIPPED):
            found[f"{names.PACKAGE}/{inside.as_posix()}"] = path.read_bytes()
    return found


def dist_info(find: Callable[[], metadata.Distribution | None]) -> tuple[str, dict[str, bytes]]:
    """The version and the files of the .dist-info: a copy of the one that is installed, or, where there is
    none or it does not name the plug-in (run from a source tree), the least that will do."""
    found = find()
    texts: dict[str, bytes] = {}
    if found is not None and _names_plugin(found):
        for path in found.files or ():
            parts = path.parts
            if len(parts) > 1 and parts[0].endswith(".dist-info") and parts[-1] not in _LOCAL:
                source = Path(str(path.locate()))
                if source.is_file():
                    texts["/".join(parts[1:])] = source.read_bytes()
        for name in ("METADATA", "entry_points.txt"):
            text = found.read_text(name)
            if text:
                texts.setdefault(name, text.encode())
    version = found.version if found is not None else _UNKNOWN_VERSION
    texts.setdefault("METADATA", _metadata(version))
    texts.setdefault("entry_points.txt", _entry_points())
    texts["INSTALLER"] = b"stanch\n"
    return version, texts


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}


def _find() -> metadata.Distribution | None:
    try:
        return metadata.distribution(names.DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _names_plugin(found: metadata.Distribution) -> bool:
    return any(
        point.group == names.PLUGIN_GROUP and point.value == names.PLUGIN_OBJECT
        for point in found.entry_points
    )


def _metadata(version: str) -> bytes:
    return f"Metadata-Version: 2.1\nName: {names.DISTRIBUTION}\nVersion: {version}\n".encode()


def _entry_points() -> bytes:
    return f"[{names.PLUGIN_GROUP}]\n{names.PLUGIN_NAME} = {names.PLUGIN_OBJECT}\n".encode()


def _b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
