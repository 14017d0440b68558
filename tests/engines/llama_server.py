# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server, and a small model of random weights for it: `python -m tests.engines.llama_server`.

The server is built once, from the sources that the package llama-cpp-python brings; both are kept in
`LLAMA_SERVER_ASSETS`, or else in a directory of that version in the user's cache.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.debian_programs import install

VERSION = "0.3.36"
"""Of llama-cpp-python; its sources of llama.cpp are of October 2026."""
PACKAGES = {"cmake": "cmake", "ninja": "ninja-build", "g++": "g++"}
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_OPENMP": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # would be downloaded
}
MODEL = Path(__file__).with_name("make_model.py")


def directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of `llama-server` and `model.gguf`, which may not exist."""
    if chosen := environment.get("LLAMA_SERVER_ASSETS"):
        return Path(chosen)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "inference-epp" / f"llama-server-{VERSION}"


def build(place: Path) -> None:
    """Build server and model into that directory, which appears whole or not at all; raises CalledProcessError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".building-") as unfinished:
        there = Path(unfinished)
        _build(there)
        (there / "kept").replace(place)


def _build(there: Path) -> None:
    requirement = f"llama-cpp-python=={VERSION}"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            requirement,
        ],
        cwd=there,
        check=True,
    )
    with tarfile.open(next(there.glob("*.tar.gz"))) as archive:
        archive.extractall(there, filter="data")
    source = next(there.glob("*/vendor/llama.cpp"))
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    subprocess.run(["cmake", "-S", source, "-B", there / "build", "-G", "Ninja", *options], check=True)  # noqa: S607
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", there / "build", "--target", "llama-server", "-j", jobs],  # noqa: S607
        check=True,
    )
    kept = there / "kept"
    kept.mkdir()
    shutil.copy(there / "build" / "bin" / "llama-server", kept)
    environment = {**os.environ, "PYTHONPATH": str(source / "gguf-py")}
    subprocess.run([sys.executable, MODEL, kept / "model.gguf"], env=environment, check=True)


def main() -> int:
    """Build what is missing; without a compiler, say how to get one, and fail where continuous integration needs it."""
    place = directory()
    if place.exists():
        return 0
    if failed := install(PACKAGES) or any(shutil.which(program) is None for program in PACKAGES):
        return int(failed and bool(os.environ.get("CI")))
    print(f"building llama-server of llama-cpp-python {VERSION} into {place} ...", flush=True)  # noqa: T201
    build(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
