"""The installer of the init container, against real folders and fresh interpreters."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from stanch_connector.install import names, place, tree
from stanch_connector.install.__main__ import main
from stanch_connector.install.advice import advise, lines

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "connector"


def inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fresh(code: str, *paths: Path, isolated: bool = True) -> str:
    """What a fresh interpreter says that has only these paths and no site-packages."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    flags = ["-S"] if isolated else []
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


ASK = """
import json, stanch_connector
from importlib import metadata
points = metadata.entry_points(group="vllm.general_plugins")
print(json.dumps([[p.name, p.value, p.dist.version] for p in points] + [stanch_connector.__file__]))
"""


def test_a_fresh_interpreter_finds_the_plugin(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    *points, file = json.loads(fresh(ASK, tmp_path))
    assert points == [[names.PLUGIN_NAME, names.PLUGIN_OBJECT, metadata.version("stanch")]]
    assert Path(file).is_relative_to(tmp_path)


def test_from_a_source_tree_without_dist_info(tmp_path: Path) -> None:
    fresh(
        f"from stanch_connector.install.__main__ import main; assert main([{str(tmp_path)!r}]) == 0", SOURCE
    )
    *points, _ = json.loads(fresh(ASK, tmp_path))
    assert points == [[names.PLUGIN_NAME, names.PLUGIN_OBJECT, "0+source"]]


def test_the_volume_may_be_mounted_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert main([str(tmp_path / "there")]) == 0
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    *points, _ = json.loads(fresh(ASK, tmp_path / "elsewhere"))
    assert len(points) == 1


def test_what_was_installed_installs_again_elsewhere(tmp_path: Path) -> None:
    """The copy is whole: it can do what the original does."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    assert main([str(tmp_path / "first")]) == 0
    second = tmp_path / "second"
    fresh(f"from stanch_connector.install.__main__ import main; main([{str(second)!r}])", tmp_path / "first")
    assert inside(tmp_path / "first") == inside(second)
    stores = [inside(tmp_path / name / names.STORE) for name in ("first", "second")]
    assert stores[0] == stores[1]


def test_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree_now = tree.wanted()
    monkeypatch.setattr("stanch_connector.install.__main__.wanted", lambda: tree_now)
    assert main([str(tmp_path), "--json"]) == 0
    before = snapshot(tmp_path)
    assert main([str(tmp_path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["written"], second["written"], snapshot(tmp_path)) == (True, False, before)


def test_an_upgrade_replaces_and_leaves_nothing(tmp_path: Path) -> None:
    one = {"stanch_connector/a.py": b"1", "stanch-1.dist-info/METADATA": b"x"}
    two = {"stanch_connector/b.py": b"2", "stanch-2.dist-info/METADATA": b"x"}
    assert place.place(tmp_path, "1", one)
    assert place.place(tmp_path, "2", two)
    assert inside(tmp_path) == [".stanch", "stanch-2.dist-info", "stanch_connector"]
    assert inside(tmp_path / "stanch_connector") == ["b.py"]
    assert len(inside(tmp_path / names.STORE)) == 1


def test_the_manifest_names_every_file_with_its_hash(tmp_path: Path) -> None:
    version, files = tree.wanted()
    place.place(tmp_path, version, files)
    [copy] = (tmp_path / names.STORE).iterdir()
    manifest = json.loads((copy / names.MANIFEST).read_bytes())
    assert (manifest["version"], manifest["files"]) == (version, tree.digests(files))
    assert not [path for path in files if "__pycache__" in path or path.endswith(".pyc")]
    assert {"stanch_connector/contract.py", "stanch_connector/py.typed"} <= files.keys()


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_a_damaged_copy_is_made_anew(tmp_path: Path, damage: str) -> None:
    version, files = tree.wanted()
    place.place(tmp_path, version, files)
    [copy] = (tmp_path / names.STORE).iterdir()
    file = copy / "stanch_connector" / "contract.py"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "gone":
        file.unlink()
    else:
        (copy / names.MANIFEST).write_text("{")
    assert place.place(tmp_path, version, files)
    assert place.is_whole(copy)
    assert len(inside(tmp_path / names.STORE)) == 1


def test_a_broken_off_run_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails at each file in turn: what was there before stays as it was."""
    old = {"stanch_connector/a.py": b"1", "stanch-1.dist-info/METADATA": b"x"}
    new = {"stanch_connector/a.py": b"2", "stanch-2.dist-info/METADATA": b"x"}
    place.place(tmp_path, "1", old)
    before = snapshot(tmp_path)
    write = place._write_file
    for fails_at in range(3):
        written: list[str] = []

        def broken(
            root: Path, path: str, content: bytes, at: int = fails_at, done: list[str] = written
        ) -> None:
            if len(done) == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            done.append(path)
            write(root, path, content)

        with monkeypatch.context() as patch:
            patch.setattr(place, "_write_file", broken)
            with pytest.raises(tree.InstallError, match="is full"):
                place.place(tmp_path, "2", new)
        assert snapshot(tmp_path) == before
    place.place(tmp_path, "2", new)
    assert (tmp_path / "stanch_connector/a.py").read_bytes() == b"2"


def test_another_user_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert main([str(tmp_path)]) == 0
    finally:
        os.umask(before)
    for path in [tmp_path / names.STORE, *(tmp_path / names.STORE).rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path != folder / names.STORE
    }


def foreign_package(target: Path) -> None:
    (target / "stanch_connector").mkdir(parents=True)


def foreign_link(target: Path) -> None:
    target.mkdir()
    (target / "stanch_connector").symlink_to("/elsewhere")


def foreign_dist_info(target: Path) -> None:
    (target / "stanch-0.0.1.dist-info").mkdir(parents=True)


def foreign_store(target: Path) -> None:
    target.mkdir()
    (target / names.STORE).write_text("mine")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda target: None, "does not exist: mount"),
    "a file": (lambda target: target.write_text("x"), "is not a directory"),
    "another's package": (foreign_package, "was not put there by this installer"),
    "another's link": (foreign_link, "was not put there by this installer"),
    "another's dist-info": (foreign_dist_info, "was not put there by this installer"),
    "another's store": (foreign_store, "is not ours"),
}


@pytest.mark.parametrize(("make", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], sentence: str
) -> None:
    target = tmp_path / "target"
    make(target)
    before = sorted(tmp_path.rglob("*"))
    assert main([str(target)]) == 1
    out, err = capsys.readouterr()
    assert (out, sorted(tmp_path.rglob("*"))) == ("", before)
    assert err.startswith("stanch: not installed: ")
    assert sentence in err
    assert err.count("\n") == 1


ERRORS = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is full",
    errno.EROFS: "mounted read-only",
    errno.EACCES: "may not be written to",
    errno.EIO: "Input/output error",
}


@pytest.mark.parametrize(
    ("number", "sentence"), ERRORS.items(), ids=[errno.errorcode[number] for number in ERRORS]
)
def test_what_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    def fails(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(place, "_write", fails)
    with pytest.raises(tree.InstallError, match=sentence):
        place.place(tmp_path, "1", {"stanch_connector/a.py": b"1"})


def test_what_else_is_in_the_volume_stays(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "their_plugin.py").write_text("x")
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "their_plugin.py").read_text() == "x"


ADVICE: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing set": ({}, {"PYTHONPATH": "/kit"}),
    "PYTHONPATH is kept": ({"PYTHONPATH": "/a:/b"}, {"PYTHONPATH": "/kit:/a:/b"}),
    "ours is not there twice": ({"PYTHONPATH": "/a:/kit"}, {"PYTHONPATH": "/kit:/a"}),
    "an empty part would be the working directory": ({"PYTHONPATH": ":/a:"}, {"PYTHONPATH": "/kit:/a"}),
    "VLLM_PLUGINS is appended to": (
        {"VLLM_PLUGINS": "lora_a,b"},
        {"PYTHONPATH": "/kit", "VLLM_PLUGINS": "lora_a,b,stanch"},
    ),
    "none allowed but ours": ({"VLLM_PLUGINS": ""}, {"PYTHONPATH": "/kit", "VLLM_PLUGINS": "stanch"}),
    "already named": ({"VLLM_PLUGINS": "stanch,b"}, {"PYTHONPATH": "/kit", "VLLM_PLUGINS": "b,stanch"}),
}


@pytest.mark.parametrize(("environ", "expected"), ADVICE.values(), ids=ADVICE.keys())
def test_environment(environ: dict[str, str], expected: dict[str, str]) -> None:
    advice = advise("/kit", environ)
    assert advice.environment == expected
    said = "\n".join(lines(advice, environ))
    assert all(f"  {name}={value}" in said for name, value in expected.items())
    assert ("append ,stanch to VLLM_PLUGINS" in said) == ("VLLM_PLUGINS" not in environ)
    assert f"--middleware {names.MIDDLEWARE}" in said
    assert f'"kv_connector_module_path": "{names.CONNECTOR_MODULE}"' in said


def test_the_names_are_those_of_the_code() -> None:
    def text(dotted: str) -> str:
        return (SOURCE / (dotted.replace(".", "/") + ".py")).read_text()

    project = (ROOT / "pyproject.toml").read_text()
    section = project.split(f'[project.entry-points."{names.PLUGIN_GROUP}"]')[1].split("[")[0]
    assert re.search(rf'^{names.PLUGIN_NAME} = "{names.PLUGIN_OBJECT}"$', section, re.M)
    module, function = names.PLUGIN_OBJECT.split(":")
    assert f"def {function}(" in text(module)
    module, _, name = names.MIDDLEWARE.rpartition(".")
    assert f"class {name}" in text(module)
    assert names.CONNECTOR in text(names.CONNECTOR_MODULE)


@pytest.mark.parametrize("target", ["", "a:b"])
def test_a_target_that_cannot_be_one(target: str, tmp_path: Path) -> None:
    """An unset variable must not install into the working directory."""
    run = subprocess.run(
        [sys.executable, "-m", "stanch_connector.install", target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, "Traceback" in run.stderr) == (2, False)
    assert list(tmp_path.iterdir()) == []


def test_installed_though_nobody_reads_the_advice(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  (a device)
        run = subprocess.run(
            [sys.executable, "-m", "stanch_connector.install", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (run.returncode, "Traceback" in run.stderr) == (0, False)
    assert "its advice was not printed" in run.stderr
    assert (tmp_path / "stanch_connector").is_dir()
