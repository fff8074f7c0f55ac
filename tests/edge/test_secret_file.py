"""Every secret that is read from a file: bounded, seen when it rotates, and never told to anybody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stanch.edge.alerts_access import Tokens
from stanch.edge.api_keys import key_of
from stanch.edge.cli.options import key_reader
from stanch.edge.errors import FileError
from stanch.edge.prometheus_table import credentials

pytestmark = pytest.mark.unit
row = pytest.param

URL = "http://prometheus.test"
FIRST, SECOND = "first-0123456789abcdef", "second-0123456789abcdef"
Reader = Callable[[Path], Callable[[], str]]


def _key_of(path: Path) -> Callable[[], str]:
    return lambda: key_of(path.parent, path.name)() or ""


def _option(path: Path) -> Callable[[], str]:
    return lambda: key_reader(path)() or ""


def _tokens(path: Path) -> Callable[[], str]:
    return lambda: Tokens(path).read()[0].decode()


def _bearer(path: Path) -> Callable[[], str]:
    return _by_table(path, f"bearerTokenFile: {path}")


def _password(path: Path) -> Callable[[], str]:
    return _by_table(path, f"basicAuth: {{username: u, passwordFile: {path}}}")


def _by_table(path: Path, how: str) -> Callable[[], str]:
    table = path.parent / "table.yaml"
    if path.parent.is_dir():
        table.write_text(f"- url: {URL}\n  {how}\n")

    def read() -> str:
        found = credentials(table, URL)
        assert found is not None
        if found.basic is not None:
            return found.basic[1].decode()
        return dict(found.headers)["Authorization"].removeprefix("Bearer ")

    return read


READERS = [
    row(_key_of, id="api-keys"),
    row(_option, id="option"),
    row(_tokens, id="alerts"),
    row(_bearer, id="prometheus-token"),
    row(_password, id="prometheus-password"),
]


@pytest.mark.parametrize("reader", READERS)
def test_a_mounted_secret_that_rotates(tmp_path: Path, reader: Reader) -> None:
    """As the kubelet does it: ..data is a link that is renamed over, and the old directory goes."""
    for number, secret in enumerate((FIRST, SECOND)):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "key").write_text(f"{secret}\n")
    data, new = tmp_path / "..data", tmp_path / "..data_tmp"
    data.symlink_to("..0")
    (tmp_path / "key").symlink_to("..data/key")
    read = reader(tmp_path / "key")
    assert read() == FIRST
    new.symlink_to("..1")
    new.replace(data)
    (tmp_path / "..0" / "key").unlink()
    (tmp_path / "..0").rmdir()
    assert read() == SECOND


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content",
    [
        row(FIRST.encode() + b"x" * (64 << 10), id="large"),
        row(b"\xff\xfef\x00i\x00r\x00s\x00t\x00", id="utf-16"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_quoted(tmp_path: Path, reader: Reader, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FileError) as error:
        reader(tmp_path / "key")()
    assert str(error.value).startswith(f"{tmp_path}/key: ")
    assert "first" not in str(error.value)
    assert "xxx" not in str(error.value)


@pytest.mark.parametrize("reader", READERS)
def test_what_has_no_end_is_read_no_further_than_needed(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "key").symlink_to("/dev/zero")
    with pytest.raises(FileError, match="larger than 64 kB"):
        reader(tmp_path / "key")()


@pytest.mark.parametrize("reader", READERS)
def test_a_directory_is_said(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(FileError, match=r"key: the (API key|token|password) cannot be read: Is a directory"):
        reader(tmp_path / "key")()


def test_a_link_into_itself_is_no_missing_key(tmp_path: Path) -> None:
    """Nothing is asked without a key where there is one that cannot be looked at."""
    (tmp_path / "shop").symlink_to("shop")
    with pytest.raises(FileError, match="shop: the API key cannot be read"):
        key_of(tmp_path, "shop")()


@pytest.mark.parametrize(("held", "good"), [("a key", True), ("two words", False)])
def test_a_key_may_have_a_space_and_a_bearer_token_none(tmp_path: Path, held: str, good: bool) -> None:
    (tmp_path / "key").write_text(held)
    if good:
        assert _option(tmp_path / "key")() == held
        return
    with pytest.raises(FileError, match="holds no token: it must be one word"):
        _bearer(tmp_path / "key")()


def test_a_password_keeps_its_spaces(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" sch\u00f6n \r\n")
    assert _password(tmp_path / "key")() == " sch\u00f6n "
