"""Run inside a container of Stanch's image: prints as JSON what it finds there. The standard library only."""

import importlib
import importlib.metadata
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import time
from pathlib import Path


def load() -> tuple[int, dict[str, str]]:
    """How many modules of ours load, and what those say that do not. An engine's packages are not here."""
    count, broken = 0, {}
    for top in ("stanch", "stanch_connector"):
        package = importlib.import_module(top)
        for found in pkgutil.walk_packages(package.__path__, f"{top}."):
            if found.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(found.name)
                count += 1
            except Exception as error:
                if getattr(error, "name", None) not in ("vllm", "torch"):
                    broken[found.name] = repr(error)
    return count, broken


def written() -> list[str]:
    """Directories in which a file could be made."""
    done = []
    for directory, names, _ in os.walk("/"):
        names[:] = [name for name in names if Path(directory, name).parts[1] not in ("proc", "sys", "dev")]
        path = Path(directory, "stanch-was-here")
        try:
            path.write_text("")
        except OSError:
            continue
        done.append(directory)
    return done


def main() -> None:
    started = time.monotonic()
    subprocess.run(["stanch", "--help"], check=True, stdout=subprocess.DEVNULL)
    help_seconds = time.monotonic() - started
    modules, broken = load()
    names = ("stanch", "python", "pip", "gcc", "cc", "make", "curl", "git")
    kit = "import stanch_connector; print(stanch_connector.__file__)"
    environment = {**os.environ, "PYTHONPATH": "/opt/stanch"}
    told = subprocess.run(
        [sys.executable, "-c", kit], check=True, capture_output=True, text=True, env=environment
    )
    points = importlib.metadata.distributions(path=["/opt/stanch"])
    facts = {
        "uid": os.getuid(),
        "python": sys.version_info[:2],
        "help_seconds": help_seconds,
        "modules": modules,
        "broken": broken,
        "written": written(),
        "programs": {name: path for name in names if (path := shutil.which(name))},
        "kit": told.stdout.strip(),
        "plugins": [p.value for one in points for p in one.entry_points if p.group == "vllm.general_plugins"],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
