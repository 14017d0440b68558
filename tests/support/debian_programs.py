# SPDX-License-Identifier: Apache-2.0
"""Programs of others that tests run: installed with apt-get and the rights of root where they are missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping


def missing(packages: Mapping[str, str]) -> list[str]:
    """Return the programs that are not on the PATH; `packages` has Debian's package of each."""
    return [program for program in packages if shutil.which(program) is None]


def remedy(programs: list[str], packages: Mapping[str, str]) -> str:
    """Return how to get them."""
    named = " ".join(dict.fromkeys(packages[program] for program in programs))
    return f"{', '.join(programs)} not found: install them, in Debian with apt-get install {named}"


def install(packages: Mapping[str, str]) -> int:
    """Install what is missing; return 1 where that fails and CI is set."""
    lacking = missing(packages)
    if lacking and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        named = dict.fromkeys(packages[program] for program in lacking)
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)  # noqa: S607  found on the PATH
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *named],  # noqa: S607  the same
            env=quiet,
            check=False,
        )
        lacking = missing(packages)
    if lacking:
        sys.stderr.write(f"{remedy(lacking, packages)}\n")
    return 1 if lacking and os.environ.get("CI") else 0
