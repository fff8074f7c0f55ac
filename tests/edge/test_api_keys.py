"""The engines' API keys: which file is read for which namespace, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.edge.api_keys import key_of
from stanch.edge.errors import FileError

pytestmark = pytest.mark.unit


def test_each_namespace_has_its_own_and_the_others_the_default(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("of-shop\n")
    assert key_of(tmp_path, "shop")() == "of-shop"
    assert key_of(tmp_path, "bank")() is None
    (tmp_path / "default").write_text("of-all")
    assert (key_of(tmp_path, "bank")(), key_of(tmp_path, "shop")()) == ("of-all", "of-shop")


def test_none_where_no_directory_is_mounted(tmp_path: Path) -> None:
    assert key_of(None, "shop")() is None
    assert key_of(tmp_path / "nowhere", "shop")() is None


def test_a_key_is_read_anew_because_secrets_rotate(tmp_path: Path) -> None:
    key = key_of(tmp_path, "shop")
    (tmp_path / "shop").write_text("old")
    assert key() == "old"
    (tmp_path / "shop").write_text("new")
    assert key() == "new"


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", b"\xff\xfe", "sch\u00f6n".encode()])
def test_a_file_without_a_key_is_said_and_never_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "shop").write_bytes(content)
    (tmp_path / "default").write_text("not-this-one")
    with pytest.raises(FileError, match="shop") as error:
        key_of(tmp_path, "shop")()
    assert "two" not in str(error.value)
