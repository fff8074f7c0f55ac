"""The API-server processes of one engine tell each other how much is open, and what became of commands.

vLLM can serve one port from several processes (--api-server-count); each has its own middleware and watcher,
and the kernel spreads the connections. So each keeps one small file in a folder that the boot id names; that
needs the boot id to be one for all of them (made once, in the process that starts the others, and handed on
by the environment). Where no folder can be made, a process is alone: with one API server that is the truth.

The one with the lowest pid leads: it carries out releases, and ends the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stanch_connector.apiserver import processes
from stanch_connector.apiserver.restart import Process
from stanch_connector.contract import Outcome

_MAX_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Peer:
    """What one process says. open_requests: None where nobody counts there. posted: commands that came to it
    by POST, for all."""

    pid: int
    open_requests: int | None
    outcomes: tuple[Outcome, ...] = ()
    posted: tuple[str, ...] = ()


def total(peers: Mapping[int, Peer]) -> int | None:
    """Open over all; None where one of them does not know."""
    counts = [peer.open_requests for peer in peers.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


class Folder:
    """This process's file among the others'. Raises OSError only from `open_folder`."""

    def __init__(
        self,
        folder: Path,
        own: Process,
        alive: Callable[[Process], bool] = processes.is_alive,
    ) -> None:
        self._folder = folder
        self._own = own
        self._alive = alive
        self._file = folder / f"{own.pid}-{own.started}.json"
        self._written: str | None = None
        # Pid and start of every process that was seen: a listing may miss a file that is just replaced.
        self._met: set[tuple[int, int]] = set()

    def publish(self, open_requests: int | None, outcomes: list[Outcome], posted: Sequence[str] = ()) -> None:
        """Atomically; nothing is written where nothing changed. Raises OSError."""
        text = json.dumps({"open": open_requests, "outcomes": outcomes, "posted": list(posted)})
        if text == self._written:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.replace(self._file)
        self._written = text

    def read(self) -> dict[int, Peer]:
        """Every process that lives, also this one once it has published. A file that cannot be read, or is
        not there any more, counts as one that does not know."""
        found = {}
        for path in self._folder.glob("*.json"):
            pid, _, started = path.stem.partition("-")
            if not (pid.isdigit() and started.isdigit()):
                continue
            if self._alive(Process(int(pid), 0, int(started), ())):
                found[int(pid)] = _peer(int(pid), path)
                self._met.add((int(pid), int(started)))
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        for pid_met, started_met in list(self._met):
            if pid_met in found:
                continue
            if self._alive(Process(pid_met, 0, started_met, ())):
                found[pid_met] = Peer(pid_met, None)
            else:
                self._met.discard((pid_met, started_met))
        return found

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def open_folder(boot_id: str, parents: tuple[str, ...] | None = None) -> Folder | None:
    """The folder of this boot id, readable by this user alone; None where none can be had."""
    own = processes.read(os.getpid())
    name = f"stanch-{os.getuid()}-{''.join(c for c in boot_id if c.isalnum() or c == '-')[:64]}"
    if own is None or not boot_id:
        return None
    for parent in parents if parents is not None else ("/dev/shm", tempfile.gettempdir()):
        folder = Path(parent, name)
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.lstat()
            if folder.is_dir() and not folder.is_symlink() and about.st_uid == os.getuid():
                return Folder(folder, own)
    return None


def _peer(pid: int, path: Path) -> Peer:
    try:
        with path.open("rb") as file:
            said: Any = json.loads(file.read(_MAX_BYTES))
        count = said["open"]
        outcomes = tuple(cast(Outcome, one) for one in said["outcomes"] if isinstance(one, dict))
        posted = tuple(text for text in said.get("posted", ()) if isinstance(text, str))
        return Peer(pid, count if isinstance(count, int) else None, outcomes, posted)
    except (OSError, ValueError, KeyError, TypeError):
        return Peer(pid, None)
