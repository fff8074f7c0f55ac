"""Put the files into the volume so that no reader ever sees half of them.

    TARGET/.stanch/<digest>/...             one complete copy with its manifest; made under another name, then
    renamed
    TARGET/stanch_connector                 -> .stanch/<digest>/stanch_connector
    TARGET/stanch-<version>.dist-info       -> .stanch/<digest>/stanch-<version>.dist-info

The two links are replaced by rename: a reader that opens either sees a whole copy, the old or the new one.
What is not ours is never touched: a name of ours that something else holds is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stanch_connector.install import names
from stanch_connector.install.tree import InstallError, digests

_MAKING = "making-"


def place(target: Path, version: str, files: Mapping[str, bytes]) -> bool:
    """True: it was written; False: this very copy was already there, and whole. Raises InstallError."""
    if not target.exists():
        raise InstallError(f"{target} does not exist: mount the shared volume there first")
    if not target.is_dir():
        raise InstallError(f"{target} is not a directory")
    hashes = digests(files)
    digest = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16]
    tops = sorted({path.split("/", 1)[0] for path in files})
    try:
        _refuse_foreign(target, tops)
        copy = target / names.STORE / digest
        written = not is_whole(copy)
        if written:
            _write(copy, version, files, hashes)
        for top in tops:
            _link(target / top, f"{names.STORE}/{digest}/{top}")
        _tidy(target, digest, tops)
    except OSError as error:
        raise InstallError(_sentence(target, error)) from error
    return written


def is_whole(copy: Path) -> bool:
    """Whether every file that its manifest names is there, with its hash."""
    try:
        manifest = json.loads((copy / names.MANIFEST).read_bytes())
        hashes: dict[str, str] = manifest["files"]
        return bool(hashes) and all(
            hashlib.sha256((copy / path).read_bytes()).hexdigest() == wanted
            for path, wanted in hashes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _refuse_foreign(target: Path, tops: list[str]) -> None:
    store = target / names.STORE
    if store.is_symlink() or (store.exists() and not store.is_dir()):
        raise InstallError(f"{store} is not ours: it is no directory. Choose an empty volume")
    for path in [*(target / top for top in tops), *_dist_infos(target)]:
        if (path.exists() or path.is_symlink()) and not _is_ours(path):
            raise InstallError(
                f"{path} was not put there by this installer, and is left alone: another volume?"
            )


def _is_ours(path: Path) -> bool:
    return path.is_symlink() and os.readlink(path).startswith(f"{names.STORE}/")  # noqa: PTH115


def _dist_infos(target: Path) -> list[Path]:
    return sorted(target.glob(f"{names.DISTRIBUTION}-*.dist-info"))


def _write(copy: Path, version: str, files: Mapping[str, bytes], hashes: Mapping[str, str]) -> None:
    store = copy.parent
    if not store.exists():
        store.mkdir(exist_ok=True)
        store.chmod(0o755)
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=store))
    try:
        # The engine may run as another user than the init container.
        making.chmod(0o755)
        for path, content in files.items():
            _write_file(making, path, content)
        manifest = {"schema": names.SCHEMA_MANIFEST, "version": version, "files": hashes}
        _write_file(making, names.MANIFEST, json.dumps(manifest, indent=1).encode())
        if copy.exists():
            # Not whole, or it would not be written anew: something damaged it.
            copy.rename(Path(tempfile.mkdtemp(prefix=_MAKING, dir=store)) / "damaged")
        making.rename(copy)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _write_file(root: Path, path: str, content: bytes) -> None:
    to = root / path
    for folder in reversed(to.relative_to(root).parents):
        inside = root / folder
        if not inside.exists():
            inside.mkdir()
            inside.chmod(0o755)
    # No fsync: what a power cut took is found by its hash when the init container runs again.
    to.write_bytes(content)
    to.chmod(0o644)


def _link(path: Path, to: str) -> None:
    new = path.parent / names.STORE / f"{_MAKING}link-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    # Relative to where the link will lie, so that the volume may be mounted elsewhere in the engine.
    new.symlink_to(to)
    new.replace(path)


def _tidy(target: Path, digest: str, tops: list[str]) -> None:
    """What an older version or a broken-off run left; where it cannot be removed, it stays."""
    for path in _dist_infos(target):
        if path.name not in tops and _is_ours(path):
            with contextlib.suppress(OSError):
                path.unlink()
    for old in (target / names.STORE).iterdir():
        if old.name != digest:
            shutil.rmtree(old, ignore_errors=True)


def _sentence(target: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{target} is full: the volume needs about 1 MB (sizeLimit of the emptyDir?)"
    if error.errno == errno.EROFS:
        return f"{target} is mounted read-only: the init container needs it writable"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{target} may not be written to by user {os.getuid()} (fsGroup, runAsUser?)"
    return f"{target}: {error.strerror or type(error).__name__}"
