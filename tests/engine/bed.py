"""The test bed: real vLLM engines on this machine's CPU, prefill and decode, with NIXL between them.

    with Bed("0.29.0") as bed:
        prefill, decode = bed.start_all(Spec("prefill"), Spec("decode", inject=True))
        pd_request(prefill.url, decode.url, words(300), mark=PARK)

Each engine is a process group of its own on free loopback ports; its log is a file in the bed's temporary
directory, which is kept, and its tails shown, only when the block fails. Nothing outlives the bed: see
leash.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from tests.engine import install, leash, processes
from tests.engine.client import MODEL_NAME, NoAnswerError, get
from tests.engine.model import write_model

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
# On two cores that do as much besides.
START_DEADLINE_S = 600
Role = Literal["prefill", "decode"]


class EngineError(Exception):
    """An engine died or did not become ready; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How to start one engine. The defaults give 100 usable blocks of 32 tokens."""

    role: Role
    name: str = ""
    inject: bool = False
    # Stanch's connector instead of the stock one.
    fixed: bool = False
    data_parallel: int = 1
    blocks: int = 100
    max_model_len: int = 512
    extra_args: Sequence[str] = ()
    # What goes onto its PYTHONPATH besides, for example the engine kit and its entry point.
    python_path: Sequence[Path] = ()
    # kv_connector_extra_config, for example {"kv_lease_duration": 10}
    connector: Mapping[str, Any] = field(default_factory=dict)


def until(condition: Callable[[], bool], what: str, deadline_s: float = 120, every_s: float = 0.1) -> float:
    """Poll until the condition holds; return the seconds that took. Raises TimeoutError."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > deadline_s:
            raise TimeoutError(f"{what}: not within {deadline_s} s")
        time.sleep(every_s)
    return time.monotonic() - started


class Engine:
    """One running vLLM server. `url` stays the same over a restart."""

    def __init__(self, spec: Spec, installed: install.Installed, model: Path, directory: Path) -> None:
        self.spec = spec
        self.name = spec.name or spec.role
        self.log = directory / f"{self.name}.log"
        self._installed, self._model, self._directory = installed, model, directory
        self._port = processes.free_ports(1)
        self._side_port = processes.free_ports(spec.data_parallel)
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self.url = f"http://127.0.0.1:{self._port}"

    def launch(self) -> None:
        """Start the processes and return at once; see wait_ready."""
        self._process = leash.start(self._command(), self.log, cwd=self._directory, env=self._environment())

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait for /health to say 200. Raises EngineError, at once when the process has died."""
        started = time.monotonic()
        while time.monotonic() - started < deadline_s:
            if not self.alive:
                raise EngineError(f"{self.name} ended while starting:\n{processes.tail(self.log)}")
            if self.healthy:
                return
            time.sleep(0.25)
        raise EngineError(f"{self.name} was not ready within {deadline_s} s:\n{processes.tail(self.log)}")

    @property
    def alive(self) -> bool:
        """Whether its main process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def healthy(self) -> bool:
        """Whether /health answers 200 now."""
        try:
            return get(self.url, "/health", timeout_s=30).status == 200
        except NoAnswerError:
            return False

    def metric(self, name: str, **labels: str) -> float | None:
        """The first series of its /metrics page that has the labels; None where there is none."""
        for line in get(self.url, "/metrics", timeout_s=30).body.splitlines():
            if line.startswith((name + "{", name + " ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                return float(line.rpartition(" ")[2])
        return None

    def worker_pids(self) -> list[int]:
        """The worker processes (one per rank), in the order of their names."""
        named = processes.in_group(self._group())
        return sorted(
            (pid for pid, line in named.items() if line.startswith("VLLM::Worker")),
            key=lambda pid: named[pid],
        )

    def worker_of(self, rank: int) -> int:
        """The worker of a data-parallel rank: its engine core's child. Both ranks' are called the same."""
        named = processes.in_group(self._group())
        (core,) = (pid for pid, line in named.items() if line.startswith(f"VLLM::EngineCore_DP{rank}"))
        return next(pid for pid in self.worker_pids() if processes.parent(pid) == core)

    def freeze_worker(self) -> None:
        """SIGSTOP every worker, as a hung device or a frozen node would; the API server goes on answering."""
        self._frozen = self.worker_pids()
        if not self._frozen:
            raise EngineError(f"{self.name} has no worker process: {processes.in_group(self._group())}")
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT what freeze_worker stopped."""
        for pid in self._frozen:
            # It may have died meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """freeze_worker for the length of a block."""
        self.freeze_worker()
        try:
            yield
        finally:
            self.thaw()

    def stop(self, grace_s: float = 10) -> None:
        """SIGTERM, after the grace SIGKILL for the whole group; returns when no process of it is left."""
        process = self._process
        if process is None:
            return
        self.ask_to_end()
        if process.poll() is None:
            # One that stays is killed next.
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        self.kill()

    def ask_to_end(self) -> None:
        """SIGTERM to the server, not waited for."""
        self.thaw()
        if self.alive and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL for the whole group; returns when no process of it is left."""
        process, self._process = self._process, None
        if process is None:
            return
        group = process.pid
        # All of it may have ended by itself.
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        until(lambda: not processes.in_group(group), f"{self.name}: end of its processes")
        self._frozen = []

    def restart(self, grace_s: float = 10) -> None:
        """Stop it and start it again on the same port; returns when it is ready."""
        self.stop(grace_s)
        self.launch()
        self.wait_ready()

    def _group(self) -> int:
        if self._process is None:
            raise EngineError(f"{self.name} is not running")
        return self._process.pid

    def _command(self) -> list[str]:
        spec = self.spec
        transfer: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer" if spec.role == "prefill" else "kv_consumer",
            "kv_buffer_device": "cpu",
        }
        if spec.inject:
            transfer |= {
                "kv_connector": "StanchFixedInjector" if spec.fixed else "StanchInjector",
                "kv_connector_module_path": "tests.engine.injector",
            }
        elif spec.fixed:
            transfer |= {
                "kv_connector": "StanchNixlConnector",
                "kv_connector_module_path": "stanch_connector.connector",
            }
        if spec.connector:
            transfer["kv_connector_extra_config"] = dict(spec.connector)
        command = [str(self._installed.python), "-m", "vllm.entrypoints.cli.main", "serve", str(self._model)]
        command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self._port)]
        # A look a second would bury what the log has to tell.
        command += ["--disable-uvicorn-access-log"]
        command += ["--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "16", "--block-size", "32"]
        # One block is vLLM's own null block.
        command += [
            "--num-gpu-blocks-override",
            str(spec.blocks + 1),
            "--max-model-len",
            str(spec.max_model_len),
        ]
        command += ["--kv-transfer-config", json.dumps(transfer)]
        if spec.data_parallel > 1:
            command += ["--data-parallel-size", str(spec.data_parallel)]
        return [*command, *spec.extra_args]

    def _environment(self) -> dict[str, str]:
        scratch = self._directory / "tmp"
        scratch.mkdir(exist_ok=True)
        path = [HERE / "inside", *self._installed.python_path]
        path += [REPOSITORY] if self.spec.inject else []
        path += [REPOSITORY / "connector"] if self.spec.fixed else []
        path += self.spec.python_path
        return {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("PYTHON", "VLLM_", "COV"))
            },
            "PYTHONPATH": os.pathsep.join(str(one) for one in path),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._side_port),
            "STANCH_BED_NIXL_DELAY_US": "1000",
            "STANCH_BED_YIELD_US": "200",
            # vLLM's sockets between its processes go here, so that a killed engine leaves nothing behind.
            "TMPDIR": str(scratch),
        }


class Bed:
    """Engines of one vLLM version, gone when the block ends. Raises EngineError where it is not installed."""

    def __init__(self, version: str = install.BASE_VERSION) -> None:
        installed = install.locate(version)
        if installed is None:
            raise EngineError(f"vLLM {version} is not installed; run `make engines`")
        self.version = version
        self._installed = installed
        self.engines: list[Engine] = []
        # Short: the sockets of vLLM live below it, and a socket's path may have 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="stanch-bed-"))
        self._model = write_model(self.directory / "model")

    def __enter__(self) -> Bed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All at once first: an engine that ends by itself removes its shared memory, a killed one leaves it
        # in /dev/shm.
        for engine in self.engines:
            engine.ask_to_end()
        for engine in self.engines:
            engine.stop(grace_s=5)
        if kind is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            print(self.tails(), file=sys.stderr)
            print(f"bed: the whole logs are in {self.directory}", file=sys.stderr)

    def start(self, role: Role, **options: Any) -> Engine:
        """Start one engine and wait until it is ready."""
        return self.start_all(Spec(role, **options))[0]

    def start_all(self, *specs: Spec) -> list[Engine]:
        """Start several at once, which takes hardly longer than one; wait until all are ready."""
        started = []
        for spec in specs:
            engine = Engine(spec, self._installed, self._model, self.directory)
            self.engines.append(engine)
            engine.launch()
            started.append(engine)
        for engine in started:
            engine.wait_ready()
        return started

    def story(self) -> str:
        """For a failure's report."""
        return self.tails(25)

    def tails(self, lines: int = 40) -> str:
        """The end of each engine's log."""
        return "\n".join(f"--- {one.name}\n{processes.tail(one.log, lines)}" for one in self.engines)
