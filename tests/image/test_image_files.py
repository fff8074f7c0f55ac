"""What lies in the image, read from its archive."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.bed import product
from tests.bed.place import REPOSITORY, cache
from tests.image.files import Contents, contents

pytestmark = pytest.mark.cluster
SITE = re.compile(r"opt/venv/lib/python3\.\d+/site-packages/")
# More than this over its base would be a package that the operator does not run with.
MOST_BYTES = 100_000_000


@pytest.fixture(scope="module")
def image(built: product.Built) -> Iterator[Contents]:
    with contents(built.image.archive) as found:
        yield found


def test_the_image_is_small_over_its_base(built: product.Built) -> None:
    over = built.bytes - built.base_bytes
    print(
        f"{over / 1e6:.1f} MB over a base of {built.base_bytes / 1e6:.1f} MB, built in {built.seconds:.0f} s"
    )
    assert 10_000_000 < over < MOST_BYTES


def test_it_runs_the_operator_as_nobody_in_particular(image: Contents) -> None:
    settings = image.config["config"]
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["stanch"]
    assert settings["Cmd"] == ["operator"]
    assert set(settings["ExposedPorts"]) == {"8080/tcp", "9443/tcp", "9095/tcp"}
    labels = {
        key.removeprefix("org.opencontainers.image."): value for key, value in settings["Labels"].items()
    }
    assert labels["title"] == "Stanch"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["base.name"].startswith(product.BASE_NAME)


def test_nobody_can_become_another_user_or_leave_files(image: Contents) -> None:
    other_user = [
        path for path, file in image.files.items() if file.info.isfile() and file.info.mode & 0o6000
    ]
    writable = {
        path: file.info.mode & 0o7777
        for path, file in image.files.items()
        if file.info.mode & 0o002 and (file.info.isfile() or file.info.isdir())
    }
    assert other_user == []
    assert writable == {"tmp": 0o1777}
    ours = [*image.under("opt/venv"), *image.under("opt/stanch")]
    assert {(file.info.uid, file.info.gid) for _, file in ours} == {(0, 0)}
    # For any numeric user: all can be read, and directories entered.
    closed = [path for path, file in ours if file.info.mode & (0o005 if file.info.isdir() else 0o004) == 0]
    assert closed == []


def test_nothing_in_it_builds_or_installs(image: Contents) -> None:
    tools = {
        "cc",
        "gcc",
        "g++",
        "c++",
        "cpp",
        "clang",
        "ld",
        "as",
        "make",
        "go",
        "rustc",
        "pip",
        "pip3",
        "uv",
    }
    programs = [path for path in image.files if re.search(r"(^|/)s?bin/[^/]+$", path)]
    assert [path for path in programs if path.rpartition("/")[2] in tools] == []
    assert [path for path, _ in image.under("opt/venv/bin") if "/python" not in path] == [
        "opt/venv/bin/stanch"
    ]
    packages = {SITE.sub("", path).split("/")[0] for path in image.files if SITE.match(path)}
    assert {"stanch", "stanch_connector", "kopf", "kubernetes", "prometheus_api_client"} <= packages
    assert not packages & {
        "pip",
        "setuptools",
        "pkg_resources",
        "hatchling",
        "pytest",
        "mypy",
        "pandas",
        "numpy",
    }
    assert [
        path for path in image.files if re.search(r"\.cache/|/pip/cache|\.whl$", path) and path[:3] == "opt"
    ] == []


def test_everything_is_compiled_for_a_container_that_cannot_write(image: Contents) -> None:
    sources = [path for path in image.files if SITE.match(path) and path.endswith(".py")]
    assert len(sources) > 1000
    compiled = {}
    for path, file in image.files.items():
        if found := re.fullmatch(r"(.+/)__pycache__/([^/]+)\.cpython-\d+\.pyc", path):
            compiled[f"{found[1]}{found[2]}.py"] = file
    # The word after the magic number is 1 for one that is taken without a look at the source (PEP 552).
    taken = {path for path, file in compiled.items() if file.read()[4:8] == b"\1\0\0\0"}
    assert [path for path in sources if path not in taken] == []


def test_nothing_of_the_machine_that_built_it_is_in_it(image: Contents) -> None:
    words = {str(REPOSITORY), str(cache()), sys.prefix, *_index_hosts()}
    history = json.dumps(image.config)
    assert [word for word in words if word in history] == []
    assert "pip.conf" not in json.dumps(image.config["config"])
    for path in (
        "etc/pip.conf",
        "run/secrets",
        "etc/hostname",
        "etc/resolv.conf",
        "etc/apt/sources.list",
        "build",
    ):
        found = image.files.get(path)
        assert found is None or found.read() == b"", path
    ours = [(path, file) for path, file in image.files.items() if file.layer > 0 and file.info.isfile()]
    assert len(ours) > 1000
    said = [(path, word) for path, file in ours for word in words if word.encode() in file.read()]
    assert said == []


def _index_hosts() -> set[str]:
    """Of this machine's package indexes, where it has its own."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    addresses = re.findall(r"https?://[^\s'\"]+", told.stdout)
    return {host for one in addresses if (host := urlsplit(one).hostname) and host != "pypi.org"}


def test_the_kit_lies_where_an_image_volume_shows_it(image: Contents) -> None:
    (manifest,) = [path for path, _ in image.under("opt/stanch") if path.endswith("/manifest.json")]
    home = str(Path(manifest).parent)
    listed = json.loads(image.files[manifest].read())["files"]
    assert {f"{home}/{name}" for name in listed} <= set(image.files)
    assert any(name.startswith("stanch_connector/") for name in listed)
    # Relative links, which hold wherever the volume is mounted.
    links = {path: file.info for path, file in image.under("opt/stanch") if file.info.issym()}
    assert all(f"opt/stanch/{link.linkname}" in image.files for link in links.values())
    (package, info) = sorted(links)[::-1]
    assert package == "opt/stanch/stanch_connector"
    assert re.fullmatch(r"opt/stanch/stanch-.+\.dist-info", info)
