# SPDX-License-Identifier: Apache-2.0
"""Runs every bench of this directory and prints the machine: `make bench`. Takes about five minutes."""

import os
import platform
import subprocess
import sys
from pathlib import Path

SECONDS = 240
"""Longest time for one bench."""


def processor() -> str:
    found = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(found, f": {platform.machine()}").partition(": ")[2]


def main() -> None:
    """Print the machine, then what each bench prints."""
    print(f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}")
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"\n{path.stem}", flush=True)
        subprocess.run([sys.executable, str(path)], check=True, timeout=SECONDS)


if __name__ == "__main__":
    main()
