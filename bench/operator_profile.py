"""`stanch operator` under cProfile, by processor time: `python -m bench.operator_profile FILE`."""

from __future__ import annotations

import cProfile
import sys
import time
from contextlib import suppress

from stanch.__main__ import main

if __name__ == "__main__":
    file, sys.argv = sys.argv[1], ["stanch", "operator"]
    profile = cProfile.Profile(time.process_time)
    with suppress(SystemExit):
        profile.runcall(main)
    profile.dump_stats(file)
