"""The annotations file as Kubernetes writes it, and the thread that reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch_connector.apiserver import podinfo, token_file
from stanch_connector.apiserver.gate import Gate
from stanch_connector.apiserver.watcher import Watcher
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON

pytestmark = pytest.mark.unit

# Made by Go 1.26's fmt.Sprintf("%q"), the same function as strconv.Quote: (the value, what it wrote).
GO_QUOTED = [
    (b"", b'""'),
    (b"plain", b'"plain"'),
    (b"a=b\nc", b'"a=b\\nc"'),
    (b"tab\tcr\rff\x0cvt\x0bbel\x07bs\x08", b'"tab\\tcr\\rff\\fvt\\vbel\\abs\\b"'),
    (b'back\\slash "quoted"', b'"back\\\\slash \\"quoted\\""'),
    (b"\x00\x1f\x7f", b'"\\x00\\x1f\\x7f"'),
    (b"\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x9a\x80", b'"\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x9a\x80"'),
    (b"\xc2\xad \xef\xbb\xbf \xe2\x80\xa8 \xc2\xa0", b'"\\u00ad \\ufeff \\u2028 \\u00a0"'),
    (b"\xf4\x8f\xbf\xbf \xf3\xa0\x80\x81", b'"\\U0010ffff \\U000e0001"'),
    (b"bad\xff\x80utf8", b'"bad\\xff\\x80utf8"'),
    (b'{"id":"c-1","verb":"drain"}', b'"{\\"id\\":\\"c-1\\",\\"verb\\":\\"drain\\"}"'),
    (b"\xef\xbf\xbd", b'"\xef\xbf\xbd"'),
    (b"\xc2\x85", b'"\\u0085"'),
]


@pytest.mark.parametrize(("value", "quoted"), GO_QUOTED, ids=[ascii(quoted) for _, quoted in GO_QUOTED])
def test_what_go_quoted(value: bytes, quoted: bytes) -> None:
    assert podinfo.unquote(quoted) == value.decode("utf-8", "replace")


NOT_QUOTED = [
    b"",
    b'"',
    b"plain",
    b"'a'",
    b'"a',
    b'a"',
    b'"a"b"',
    b'"\\"',
    b'"\\q"',
    b'"\\x4"',
    b'"\\xzz"',
    b'"\\u12"',
    b'"\\ud800"',
    b'"\\U00110000"',
    b'"\\u+123"',
    b'"\\x_1"',
    b'"a\\',
]


@pytest.mark.parametrize("quoted", NOT_QUOTED, ids=ascii)
def test_what_go_never_writes(quoted: bytes) -> None:
    assert podinfo.unquote(quoted) is None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_never_raises(content: bytes) -> None:
    podinfo.parse(content)


def test_lines() -> None:
    content = b'a="1"\nb.example/c="x=\\"y\\"\\nz"\nbroken\n="no key"\nnone\xff=\nlast="e"'
    assert podinfo.parse(content) == podinfo.Annotations(
        {"a": "1", "b.example/c": 'x="y"\nz', "last": "e"}, 3
    )


def test_empty_file_has_no_annotations() -> None:
    assert podinfo.parse(b"") == podinfo.Annotations({})


class Volume:
    """A downward-API volume: a link to a link to a folder; an update renames the inner link (the kubelet's
    AtomicWriter, read in 1.35)."""

    def __init__(self, root: Path) -> None:
        self.root, self.updates = root, 0
        self.file = root / "annotations"

    def write(self, **values: str) -> None:
        lines = [f"{key}={json.dumps(value)}" for key, value in sorted(values.items())]
        self.write_bytes("\n".join(lines).encode())

    def write_bytes(self, content: bytes) -> None:
        self.updates += 1
        folder = self.root / f"..{self.updates}"
        folder.mkdir()
        (folder / "annotations").write_bytes(content)
        (self.root / "..data_tmp").symlink_to(folder.name)
        (self.root / "..data_tmp").replace(self.root / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/annotations")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    root = tmp_path / "podinfo"
    root.mkdir()
    return Volume(root)


def cordon(beat: int) -> str:
    return json.dumps({"incident": "li-1", "beat": beat, "leaseSeconds": 30})


def command(name: str, verb: str = "drain", boot: str = "b00t") -> str:
    return json.dumps({"id": name, "verb": verb, "bootId": boot, "deadlineSeconds": 60})


class Scene:
    def __init__(self, volume: Volume) -> None:
        self.now = 0.0
        self.gate = Gate("b00t", clock=lambda: self.now)
        self.watcher = Watcher(self.gate, str(volume.file))

    def names(self) -> list[str]:
        return [outcome["id"] for outcome in self.gate.outcomes()]


def test_updates_of_the_volume_are_seen(volume: Volume) -> None:
    scene = Scene(volume)
    volume.write(other="1")
    scene.watcher.once()
    volume.write(**{ANNOTATION_CORDON: cordon(1), ANNOTATION_COMMAND: command("c-1")})
    scene.watcher.once()
    assert (scene.gate.state()["cordonIncident"], scene.names()) == ("li-1", ["c-1"])
    volume.write(**{ANNOTATION_COMMAND: command("c-3")})
    scene.watcher.once()
    scene.watcher.once()
    assert (scene.gate.state()["cordoned"], scene.names()) == (False, ["c-1", "c-3"])


def test_absent_then_there(volume: Volume) -> None:
    """No file is no reading: a cordon that is there when it comes was there before, for all that is known."""
    scene = Scene(volume)
    scene.watcher.once()
    volume.write(**{ANNOTATION_CORDON: cordon(1)})
    scene.watcher.once()
    assert (scene.gate.ready(), scene.watcher.unread) == (True, 0)


def test_a_file_that_goes_away_lets_the_cordon_run_out(volume: Volume) -> None:
    scene = Scene(volume)
    volume.write()
    scene.watcher.once()
    volume.write(**{ANNOTATION_CORDON: cordon(1)})
    scene.watcher.once()
    volume.file.unlink()
    for scene.now, ready in ((29.9, False), (30.0, True)):
        scene.watcher.once()
        assert scene.gate.ready() is ready


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "too large": lambda path: path.write_bytes(b"a=" + b"x" * podinfo.MAX_FILE_BYTES),
    "a directory": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_is_counted_and_said_once_a_minute(
    tmp_path: Path, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "annotations"
    make(file)
    gate = Gate("b00t")
    watcher = Watcher(gate, str(file))
    for _ in range(30):
        watcher.once()
    assert (watcher.unread, gate.guard.errors, gate.guard.disabled) == (30, {}, None)
    assert len([record for record in caplog.records if "not read" in record.message]) == 1


def test_garbage_is_no_command_and_the_rest_counts(volume: Volume) -> None:
    scene = Scene(volume)
    volume.write_bytes(os.urandom(4096).replace(b"\n", b"") + b"\n" + b'a="b"\n\xff\xfe')
    scene.watcher.once()
    assert (scene.watcher.bad_lines, scene.names()) == (2, [])
    volume.write_bytes(b"junk\n" + f"{ANNOTATION_COMMAND}={json.dumps(command('c-1'))}".encode())
    scene.watcher.once()
    assert scene.names() == ["c-1"]


def test_a_failure_of_ours_is_counted_and_the_next_round_works(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(volume)
    volume.write(**{ANNOTATION_COMMAND: command("c-1")})
    with monkeypatch.context() as patch:
        patch.setattr(podinfo, "parse", lambda content: 1 / 0)
        scene.watcher.once()
    assert scene.gate.guard.errors == {"annotations": 1}
    scene.watcher.once()
    assert scene.names() == ["c-1"]


def eventually(true: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 10
    while not true() and time.monotonic() < ends:
        time.sleep(0.005)
    return true()


def test_the_thread_reads_and_stops(volume: Volume) -> None:
    gate = Gate("thread-test")
    watcher = Watcher(gate, str(volume.file))
    volume.write(**{ANNOTATION_COMMAND: command("c-1", boot="thread-test")})
    watcher.start()
    watcher.start()
    assert eventually(lambda: bool(gate.outcomes()))
    assert [thread.name for thread in threading.enumerate()].count("stanch-watcher") == 1
    watcher.stop()
    assert not watcher.alive()


def test_no_failure_of_ours_ends_the_thread(volume: Volume) -> None:
    class Moody(Gate):
        failures = 3

        def busy(self) -> bool:
            if self.failures:
                self.failures -= 1
                raise RuntimeError
            return False

    gate = Moody("thread-test")
    watcher = Watcher(gate, str(volume.file))
    watcher.start()
    assert eventually(lambda: gate.failures == 0)
    volume.write(**{ANNOTATION_COMMAND: command("c-1", boot="thread-test")})
    assert eventually(lambda: bool(gate.outcomes()))
    watcher.stop()
    assert sum(gate.guard.errors.values()) == 3
    assert gate.guard.disabled is None


def test_nothing_at_import_and_a_running_watcher_does_not_hinder_the_end(tmp_path: Path) -> None:
    code = (
        "import threading, sys\n"
        "from stanch_connector.apiserver import gate, watcher\n"
        "assert threading.active_count() == 1\n"
        "assert not {'vllm', 'torch'} & set(sys.modules)\n"
        "g = gate.serve_gate('end-test')\n"
        "assert threading.active_count() == 2\n"
        "g.turn(0)\n"
        "import time, glob, tempfile\n"
        "files = [f'{d}/stanch-*-end-test/*.json' for d in ('/dev/shm', tempfile.gettempdir())]\n"
        "ends = time.monotonic() + 10\n"
        "while not any(map(glob.glob, files)) and time.monotonic() < ends: time.sleep(.01)\n"
        "assert any(map(glob.glob, files))\n"
    )
    env = {**os.environ, "STANCH_ANNOTATIONS": str(tmp_path / "none")}
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=30)
    assert time.monotonic() - begun < 10
    left = [
        path
        for parent in ("/dev/shm", tempfile.gettempdir())
        for path in Path(parent).glob("stanch-*-end-test")
    ]
    assert left == []


def test_a_directory_in_place_of_the_file_costs_no_descriptor(tmp_path: Path) -> None:
    """As where the volume's mount is named instead of the file in it."""
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(50):
        with pytest.raises(podinfo.AnnotationsError, match="must name the file"):
            podinfo.read(str(tmp_path))
        assert token_file.content(str(tmp_path)) is None
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
