"""Docker archives made without Docker."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.bed import image

pytestmark = pytest.mark.unit


def test_an_archive_says_what_is_in_it(tmp_path: Path) -> None:
    hello = tmp_path / "hello"
    hello.write_text("hello")
    layers = [image.files({"bin/hello": hello}), image.files({})]
    archive = tmp_path / "out.tar"
    image.write(archive, "stanch.test/hello:1", layers, ["/bin/hello"], {"A": "b"})
    with tarfile.open(archive) as tar:
        read = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    (manifest,) = json.loads(read["manifest.json"])
    assert manifest["RepoTags"] == ["stanch.test/hello:1"]
    assert [read[name] for name in manifest["Layers"]] == layers
    config = json.loads(read[manifest["Config"]])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    assert config["config"] == {"Entrypoint": ["/bin/hello"], "Env": ["A=b"]}


def test_the_same_files_make_the_same_layer_whenever_they_were_written(tmp_path: Path) -> None:
    layers = []
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_text("the same")
        layers.append(image.files({"file": path}))
    assert layers[0] == layers[1]


def test_a_link_is_packed_as_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with tarfile.open(fileobj=io.BytesIO(image.files({"file": tmp_path / "link"}))) as tar:
        assert tar.getmember("file").isreg()
