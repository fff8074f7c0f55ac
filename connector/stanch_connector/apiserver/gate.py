"""What the middleware asks, and what the watcher tells: one object between the two threads.

For the middleware (apiserver/control.py has the protocol that this meets), from the event loop; each returns
at once:
    not_ready() / ready()          what ROUTE_READY says, besides vLLM's own health
    turns_away(path, request_id)   before the engine sees a request: a reason to say 503, None: it passes
    opened(), closed()             around every request for work (drain.passes(path, None, "") is false) that
                                   was let through; without them a drain cannot tell that it is done, and a
                                   restart waits for its deadline
    state(), outcomes(), command() for ROUTE_STATE and ROUTE_COMMAND
From the middleware: `releaser = f`, f(order, report) begins a release and returns at once; report(outcome)
may come later from any thread, and more than once ("running", then the end). Without it releases are refused.
For the watcher: `read`, `turn`, `restart_failed`.

The lock is held for the length of a few assignments, never while anything of the engine runs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stanch_connector.apiserver import commands, cordon, drain, restart, token_file
from stanch_connector.apiserver.authorize import Access, authorize
from stanch_connector.apiserver.commands import Order
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON, KitState, Outcome
from stanch_connector.engine.guard import Guard

Report = Callable[[Outcome], None]
Releaser = Callable[[Order, Report], None]

# Commands by POST that the other API-server processes are told of.
_KEPT_POSTS = 8
# A restart's drain outlives its deadline by this: the signals and their graces come after it.
_RESTART_TAIL_SECONDS = restart.KILL_GRACE_SECONDS + 5.0

# Below vLLM's own logger: no other has a handler in its processes.
logger = logging.getLogger("vllm.stanch")


class Gate:
    """Cordon, drain, restart and commands of one API-server process."""

    def __init__(
        self,
        boot_id: str,
        guard: Guard | None = None,
        clock: Callable[[], float] = time.monotonic,
        token_file: str | None = None,
        counting: bool = False,
    ) -> None:
        self.boot_id = boot_id
        self.guard = guard or Guard()
        self.releaser: Releaser | None = None
        self.wake: Callable[[], None] = lambda: None
        # Lines of the annotations file that are no annotation, as the watcher counts them.
        self.bad_lines = 0
        self._clock = clock
        self._token_file = token_file
        self._lock = threading.Lock()
        self._lease = cordon.Lease()
        self._book = commands.Book(boot_id)
        self._drain = drain.Drain()
        self._drains: set[str] = set()
        self._restart: restart.Restart | None = None
        self._ended: deque[Outcome] = deque(maxlen=commands.KEPT_OUTCOMES)
        self._posted: deque[str] = deque(maxlen=_KEPT_POSTS)
        self._open = 0
        self._counting = counting

    # -- for the middleware

    def ready(self) -> bool:
        return self.not_ready() is None

    def not_ready(self) -> str | None:
        """Why this engine wants no traffic; None where nothing of ours stands against it (fail-open)."""
        now = self._clock()
        if self.guard.disabled is not None:
            return None
        if self._restarting():
            return "a restart is under way"
        if drain.draining(self._drain, now):
            return "draining"
        lease = self._lease
        if cordon.cordoned(lease, now):
            return f"cordoned for {cordon.incident_of(lease, now) or 'an unnamed incident'}"
        return None

    def turns_away(self, path: str, request_id: str | None) -> str | None:
        if self.guard.disabled is not None or not drain.draining(self._drain, self._clock()):
            return None
        return None if drain.passes(path, request_id, self.boot_id) else "draining"

    def opened(self) -> None:
        with self._lock:
            self._counting = True
            self._open += 1

    def closed(self) -> None:
        with self._lock:
            self._open = max(0, self._open - 1)

    def open_requests(self) -> int | None:
        """Work that is open in this process; None where nobody counts it."""
        return self._open if self._counting else None

    def outcomes(self) -> list[Outcome]:
        return commands.outcomes(commands.expire(self._book, self._clock()))

    def state(self) -> KitState:
        now = self._clock()
        lease = self._lease
        return {
            "draining": drain.draining(self._drain, now),
            "cordoned": cordon.cordoned(lease, now),
            "cordonIncident": cordon.incident_of(lease, now),
            "outcomes": self.outcomes(),
            "malformed": lease.malformed + self._book.malformed + self.bad_lines,
        }

    def access(self, authorization: str | None) -> tuple[int, Mapping[str, Any]] | None:
        """None where this value of Authorization may command; else the answer to a POST."""
        header = None if authorization is None else authorization.encode("latin-1", "replace")
        access = authorize(header, token_file.content(self._token_file))
        return None if access is Access.ALLOWED else (access.status, {"error": access.reason})

    def command(self, body: bytes, authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        """POST on ROUTE_COMMAND: 404 without a token file, 401 without the right token, 503 where the kit has
        turned itself off, 400 for what is no command of ours or may not be, 409 where it is for another boot
        id; else 200 and the Outcome."""
        refusal = self.access(authorization)
        if refusal is not None:
            return refusal
        if self.guard.disabled is not None:
            return 503, {"error": f"the kit turned itself off: {self.guard.disabled}"}
        outcome, fresh = self._take(body.decode("utf-8", "replace"))
        if fresh:
            return 200, outcome
        return {"ignored": 409, "refused": 400}.get(outcome.get("state", ""), 200), outcome

    # -- for whoever carries out a release

    def report(self, outcome: Outcome) -> None:
        with self._lock:
            self._change(commands.report(self._book, outcome))

    # -- for the watcher

    def read(self, values: Mapping[str, str], leads: bool = True) -> None:
        """The annotations, as just read. leads: whether this process carries out what only one may."""
        before = (self._lease.malformed, self._book.malformed)
        with self._lock:
            now = self._clock()
            self._lease = cordon.step(self._lease, values.get(ANNOTATION_CORDON), now)
            book, order = commands.watch(self._book, values.get(ANNOTATION_COMMAND), now)
            self._change(book)
            begin = order is not None and self._begin(order, now)
        after = (self._lease.malformed, self._book.malformed)
        for name, was, now_is in zip((ANNOTATION_CORDON, ANNOTATION_COMMAND), before, after, strict=True):
            if now_is != was:
                # Once for each text, and never the text itself.
                logger.warning("stanch: the annotation %s is not understood, and ignored", name)
        if begin and order is not None and leads:
            self._release(order)

    def posted(self) -> list[str]:
        """Commands that came here by POST: every API-server process carries them out, but for a release, of
        which the others only show the outcome."""
        return list(self._posted)

    def forwarded(self, text: str) -> None:
        """Such a command of another process; once, like any other."""
        with self._lock:
            now = self._clock()
            book, order, _ = commands.take(self._book, text, now)
            self._change(book)
            if order is not None and order.verb != "release":
                self._begin(order, now)

    def turn(self, open_total: int | None) -> restart.Act:
        """Time passes. open_total: over all API-server processes; None where it is not known, which is never
        taken for zero. What comes back is for the process that leads to do."""
        try:
            with self._lock:
                return self._turn(open_total, self._clock())
        finally:
            self._tell()

    def _turn(self, open_total: int | None, now: float) -> restart.Act:
        self._drain = drain.extend(self._drain, self._lease.ends_at, now)
        self._change(commands.expire(self._book, now))
        count = 1 if open_total is None else open_total
        self._drain, rested = drain.rests(self._drain, count, now)
        for name in list(self._drains):
            if rested:
                self._change(commands.report(self._book, {"id": name, "state": "done"}))
            if (commands.outcome_of(self._book, name) or {}).get("state") not in ("accepted", "running"):
                self._drains.remove(name)
        if self._restart is None:
            return restart.Act.WAIT
        self._restart, act = restart.step(self._restart, count, now)
        if act is restart.Act.GIVE_UP:
            self._end_restart("the process lived on after SIGKILL")
        return act

    def restart_failed(self, reason: str) -> None:
        with self._lock:
            self._end_restart(reason)

    def restarting(self) -> str | None:
        """The command's id while a restart is under way."""
        return self._restart.id if self._restart is not None and self._restarting() else None

    def busy(self) -> bool:
        """Whether the watcher should look more often: out of service, an engine waits for the next order."""
        now = self._clock()
        held = cordon.cordoned(self._lease, now) or drain.draining(self._drain, now)
        return held or bool(self._drains) or self._restarting()

    # -- within

    def _restarting(self) -> bool:
        current = self._restart
        return current is not None and current.phase is not restart.Phase.FAILED

    def _take(self, text: str) -> tuple[Outcome, bool]:
        with self._lock:
            now = self._clock()
            book, order, outcome = commands.take(self._book, text, now)
            self._change(book)
            begin = order is not None and self._begin(order, now)
            if order is not None:
                outcome = commands.outcome_of(self._book, order.id) or outcome
                self._posted.append(_shared(order, text))
        if begin and order is not None:
            self._release(order)
            outcome = commands.outcome_of(self._book, order.id) or outcome
        self.wake()
        return outcome, order is not None

    def _begin(self, order: Order, now: float) -> bool:
        """Under the lock. True: it is a release, to be handed over without the lock."""
        outcome: Outcome = {"id": order.id, "state": "running"}
        current = self._restart
        if order.verb == "release":
            return True
        if current is not None and self._restarting():
            outcome = {"id": order.id, "state": "refused", "reason": f"restart {current.id} is under way"}
        elif order.verb == "drain":
            self._drain = drain.start(self._drain, order.deadline, now)
            self._drains.add(order.id)
        elif order.verb == "undrain":
            for name in self._drains:
                ended: Outcome = {"id": name, "state": "failed", "reason": f"ended by undrain {order.id}"}
                self._change(commands.report(self._book, ended))
            self._drain, self._drains = drain.Drain(), set()
            outcome = {"id": order.id, "state": "done"}
        else:
            ends = order.deadline + restart.term_grace_seconds() + _RESTART_TAIL_SECONDS
            self._drain = drain.start(self._drain, ends, now)
            self._restart = restart.begin(order.id, order.deadline, self._drain.rest, now)
        self._change(commands.report(self._book, outcome))
        return False

    def _release(self, order: Order) -> None:
        releaser = self.releaser
        if releaser is None:
            self.report({"id": order.id, "state": "refused", "reason": "nothing here carries out releases"})
            return
        try:
            releaser(order, self.report)
        except Exception as error:
            self.guard.failed("release", error)
            self.report(
                {"id": order.id, "state": "failed", "reason": "the kit failed; nothing was handed over"}
            )

    def _end_restart(self, reason: str) -> None:
        if self._restart is None:
            return
        self._change(
            commands.report(self._book, {"id": self._restart.id, "state": "failed", "reason": reason})
        )
        self._restart = replace(self._restart, phase=restart.Phase.FAILED)
        self._drain = drain.Drain()

    def _change(self, book: commands.Book) -> None:
        """Under the lock: the new book, and a line for the log for every outcome that ended."""
        if book is self._book:
            return
        before = {id(entry) for entry in self._book.entries}
        self._book = book
        for entry in book.entries:
            if id(entry) not in before and entry.outcome.get("state") not in ("accepted", "running"):
                self._ended.append(entry.outcome)

    def _tell(self) -> None:
        """Without the lock, by the watcher: a log that blocks hinders nobody else."""
        while self._ended:
            logger.info("stanch: command %s", json.dumps(self._ended.popleft()))


def _shared(order: Order, text: str) -> str:
    """What the other processes need of a command: of a release not its ids, which only one carries out."""
    if order.verb != "release":
        return text
    command = json.loads(text)
    kept = ("id", "verb", "bootId", "deadlineSeconds")
    return json.dumps({key: command[key] for key in kept if key in command})


def serve_gate(boot_id: str) -> Gate:
    """A Gate with its watcher running, for a middleware that calls opened and closed."""
    from stanch_connector.apiserver.watcher import Watcher

    gate = Gate(boot_id, counting=True)
    Watcher(gate).start()
    return gate
