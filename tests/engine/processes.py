"""What the bed needs to know of processes and ports on this machine (Linux: it reads /proc)."""

from __future__ import annotations

import random
import socket
from pathlib import Path

# Below the kernel's own range for outgoing connections (32768 and up), so that no client is given one of
# these in between.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> int:
    """The first of `count` neighbouring loopback ports that nobody listens on."""
    for _ in range(200):
        first = random.randrange(_PORTS.start, _PORTS.stop - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} neighbouring free ports between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def in_group(group: int) -> dict[int, str]:
    """The living processes of a process group: pid -> command line."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the command's closing bracket: state, parent, process group ...
            state, _, its_group = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                line = entry.joinpath("cmdline").read_bytes()
                found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # It ended while we looked.
    return found


def parent(pid: int) -> int:
    """Of a living process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log, as far as it exists."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
