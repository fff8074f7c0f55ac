"""The thread that reads the annotations file and makes time pass for the Gate.

It works while the event loop is stuck: it shares nothing with it but the Gate's short lock. It polls, because
a downward-API volume is replaced by renaming a symlink, which inotify on the file does not see (and a subPath
mount is never updated at all). It is a daemon, so it does not hinder the interpreter's end. Whatever it does
may fail: it is caught, counted, said once a minute, and tried again (law 9).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable

from stanch_connector.apiserver import peers, podinfo, processes, restart
from stanch_connector.apiserver.gate import Gate
from stanch_connector.contract import DEFAULT_ANNOTATIONS, ENV_ANNOTATIONS

POLL_SECONDS = 0.5
# While an engine is out of service, drains or restarts: two readings must lie 0.2 s apart, and no sooner.
BUSY_POLL_SECONDS = 0.1
_LOG_EVERY_SECONDS = 60.0

logger = logging.getLogger("vllm.stanch")


class Watcher:
    """start() once; stop() ends it within a poll. unread: readings of the file that failed, an absent file
    not counted; bad_lines: of the last reading."""

    def __init__(self, gate: Gate, path: str | None = None, folder: peers.Folder | None = None) -> None:
        self.unread = 0
        self.bad_lines = 0
        self._gate = gate
        self._path = path or os.environ.get(ENV_ANNOTATIONS) or DEFAULT_ANNOTATIONS
        self._folder = folder
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._target: restart.Target | None = None
        # Whether this process led when the restart began.
        self._led = False
        self._said_at: float | None = None
        self._pause = POLL_SECONDS
        self._content: bytes | None = None
        self._values: dict[str, str] = {}

    def start(self) -> None:
        """A second call does nothing. After a fork the child has no watcher: make a new one there."""
        if self._thread is not None:
            return
        self._gate.wake = self._wake.set
        self._thread = threading.Thread(target=self._run, name="stanch-watcher", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Ends the thread; waits for it, but not for ever."""
        self._stopped.set()
        self._wake.set()
        atexit.unregister(self._leave)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def once(self) -> None:
        """One round. Never raises."""
        self._pause = POLL_SECONDS
        self._guarded("annotations", self._read)
        self._guarded("peers", self._share)
        self._guarded("turn", self._turn)
        self._guarded("pause", self._hasten)

    def _run(self) -> None:
        if self._folder is None:
            self._guarded("peers", self._join)
        while not self._stopped.is_set():
            self.once()
            self._wake.wait(self._pause)
            self._wake.clear()
        if self._folder is not None:
            self._guarded("peers", self._folder.remove)

    def _hasten(self) -> None:
        if self._gate.busy():
            self._pause = BUSY_POLL_SECONDS

    def _guarded(self, hook: str, work: Callable[[], None]) -> None:
        if self._gate.guard.disabled is not None:
            return
        try:
            work()
        except Exception as error:
            self._gate.guard.failed(hook, error)
        else:
            self._gate.guard.worked(hook)

    def _leave(self) -> None:
        """At the interpreter's end: no file stays behind. Waits for nothing."""
        self._stopped.set()
        if self._folder is not None:
            self._guarded("peers", self._folder.remove)

    def _join(self) -> None:
        self._folder = peers.open_folder(self._gate.boot_id)

    def _read(self) -> None:
        """A file that is absent, too large or unreadable is no reading: a cordon then runs out by itself."""
        try:
            content = podinfo.read(self._path)
        except FileNotFoundError:
            return
        except (OSError, podinfo.AnnotationsError) as error:
            self.unread += 1
            known = isinstance(error, podinfo.AnnotationsError)
            why = str(error) if known else type(error).__name__
            self._say(f"the annotations file is not read: {why} ({self.unread} times)")
            return
        if content != self._content:
            parsed = podinfo.parse(content)
            self._content, self._values, self.bad_lines = content, parsed.values, parsed.bad_lines
            self._gate.bad_lines = parsed.bad_lines
            if parsed.bad_lines:
                self._say(f"{parsed.bad_lines} lines of the annotations file are no annotation")
        self._gate.read(self._values, self._leads())

    def _share(self) -> None:
        if self._folder is None:
            return
        self._publish()
        for peer in self._folder.read().values():
            if peer.pid == os.getpid():
                continue
            for outcome in peer.outcomes:
                if outcome.get("verb") == "release":
                    self._gate.report(outcome)
            for text in peer.posted:
                self._gate.forwarded(text)

    def _publish(self) -> bool:
        """A full /dev/shm or the like is no fault of ours, and must not turn the kit off."""
        try:
            if self._folder is not None:
                gate = self._gate
                self._folder.publish(gate.open_requests(), gate.outcomes(), gate.posted())
        except OSError as error:
            self._say(f"the other API servers are not told: {type(error).__name__}")
            return False
        return True

    def _open_total(self) -> int | None:
        """Over all API-server processes; None where that is not known, which is never taken for zero."""
        count = self._gate.open_requests()
        if self._folder is None or not self._gate.busy():
            return count
        told = self._publish()
        own = peers.Peer(os.getpid(), count)
        return peers.total({**self._folder.read(), own.pid: own}) if told else None

    def _turn(self) -> None:
        gate = self._gate
        open_total = self._open_total()
        if gate.restarting() is None:
            self._target = None
            gate.turn(open_total)
            return
        if self._target is None:
            self._led = self._leads()
            self._target = restart.choose(processes.table(), os.getpid())
            if self._target is None:
                gate.restart_failed("the process to end was not found: no readable /proc")
                return
        act = gate.turn(open_total)
        # The one that leads may end first, and the next would ask the engine to end a second time, which vLLM
        # may take for more than the first. Only the last resort is for whoever leads then.
        if (act is restart.Act.TERM and self._led) or (act is restart.Act.KILL and self._leads()):
            self._end(act, self._target)

    def _end(self, act: restart.Act, target: restart.Target) -> None:
        argv = " ".join(target.root.argv[:3])
        logger.warning("stanch: restart: SIG%s to process %d", act.value.upper(), target.root.pid)
        logger.debug("stanch: restart: %s", argv)
        try:
            if act is restart.Act.TERM:
                processes.terminate(target)
            else:
                if self._folder is not None:
                    self._folder.remove()
                processes.kill(target, restart.descendants(processes.table(), target.root.pid))
        except OSError as error:
            self._gate.restart_failed(f"the process could not be ended: {type(error).__name__}")

    def _leads(self) -> bool:
        """Whether this process carries out what only one may."""
        if self._folder is None:
            return True
        others = self._folder.read()
        return not others or os.getpid() <= min(others)

    def _say(self, what: str) -> None:
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= _LOG_EVERY_SECONDS:
            self._said_at = now
            logger.warning("stanch: %s", what)
