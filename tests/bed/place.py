"""Where everything of the bed lives: the cache of what was built, and the directory of one running bed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.engine.install import cache_directory as engines_directory

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
DEFAULT_NAME = "stanch"
# The node's address and those of pods and Services: inside the bed's network namespace, so every bed may have
# the same.
NODE_IP = "10.200.0.1"
POD_SUBNET = "10.201.0.0/16"
SERVICE_SUBNET = "10.96.0.0/16"
FIRST_SERVICE_IP = "10.96.0.1"
NODE_NAME = "node1"
API_PORT = 6443


class BedError(Exception):
    """The bed cannot do it; the message says what is wrong and what to do."""


def cache() -> Path:
    """What is built once and kept: `$STANCH_CACHE/kube`, else stanch/kube in the user's cache directory."""
    return engines_directory().parent / "kube"


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one bed. Everything that it writes is below `state`, and goes with it."""

    name: str
    state: Path

    @classmethod
    def of(cls, name: str) -> Place:
        """Raises BedError where the name cannot be one of a directory, a cgroup and a kubeconfig context."""
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", name):
            raise BedError(
                f"{name!r} cannot be a bed's name: it takes 1 to 32 of a-z, 0-9 and '-', no '-' at the ends"
            )
        return cls(name, cache().parent / "beds" / name)

    @property
    def cgroup(self) -> str:
        """The cgroup that holds the bed's pods, in every hierarchy."""
        return f"stanch-bed-{self.name}"

    @property
    def context(self) -> str:
        return f"stanch-bed-{self.name}"

    @property
    def lock(self) -> Path:
        """Held during `up` and `down`; outside of `state`, which goes away under it."""
        return self.state.with_name(f".{self.name}.lock")

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def spec(self) -> Path:
        """What `up` was asked for: see inside.Spec."""
        return self.state / "spec.json"

    @property
    def ready(self) -> Path:
        """There once the node is Ready: seconds from the start to the end of each step."""
        return self.state / "ready.json"

    @property
    def failed(self) -> Path:
        """There when it will not become ready, or a component has ended: why."""
        return self.state / "failed"
