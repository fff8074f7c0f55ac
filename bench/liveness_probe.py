"""The plain liveness probe of bench.liveness, run in the engine's container: liveness_probe.py HOLD_SECONDS

Exit code 1, for the kubelet to restart the container, once the engine has held KV cache in every reading of
so long in which nothing ran and nothing waited. A probe that asked for idle readings without a break would
never fire under traffic; this one remembers. Standard library only, imported without site.
"""

from __future__ import annotations

import http.client
import sys
import time
from pathlib import Path

FLOOR = 0.05
# Of this container run: another has a file system of its own.
_SINCE = Path("/tmp/held-since")
_NAMES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")


def main(hold_s: float) -> int:
    try:
        usage, running, waiting = _read()
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        # What cannot be read says nothing.
        return 0
    idle = not running and not waiting
    if idle and usage < FLOOR:
        _SINCE.unlink(missing_ok=True)
    elif idle and not _SINCE.exists():
        _SINCE.write_text(str(time.time()))
    return int(_SINCE.exists() and time.time() - float(_SINCE.read_text()) >= hold_s)


def _read() -> tuple[float, float, float]:
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=3)
    query = "&".join(f"name[]=vllm:{name}" for name in _NAMES)
    connection.request("GET", f"/metrics/?{query}")
    page = connection.getresponse().read().decode()
    found = {}
    for line in page.splitlines():
        name = line.partition("{")[0].removeprefix("vllm:")
        if name in _NAMES:
            found[name] = float(line.rpartition(" ")[2])
    usage, running, waiting = (found[name] for name in _NAMES)
    return usage, running, waiting


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
