# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests on Kubernetes: kube-apiserver, etcd and helm, built once with Go from its module proxy.

    python tests/kube/build_assets.py

They are kept in `KUBEBUILDER_ASSETS`, or else in a directory of these versions in the user's cache.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and how it is built: the module of its name pins the versions of everything in it."""

    name: str
    version: str
    package: str
    version_variable: str = ""


PROGRAMS = (
    Program("etcd", "v3.6.5", "go.etcd.io/etcd/server/v3"),
    Program("helm", "v3.22.0", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3/internal/version.version"),
    Program(
        "kube-apiserver",
        "v1.36.3",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/component-base/version.gitVersion",
    ),
)


def directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the programs, which may not exist."""
    if chosen := environment.get("KUBEBUILDER_ASSETS"):
        return Path(chosen)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "inference-epp" / "-".join(f"{program.name}-{program.version}" for program in PROGRAMS)


def missing(place: Path) -> list[Program]:
    """Return the programs that are not in the directory."""
    return [program for program in PROGRAMS if not os.access(place / program.name, os.X_OK)]


def remedy(place: Path) -> str:
    """Return the sentence on what is missing and how to get it."""
    names = ", ".join(program.name for program in missing(place))
    return (
        f"no {names} in {place}: install Go 1.26 or newer and run `make kube-assets`, "
        "or set KUBEBUILDER_ASSETS to a directory that has them"
    )


def build(place: Path) -> None:
    """Build what is missing; a program appears whole or not at all, and a second builder waits for the first.

    Raises CalledProcessError if Go fails.
    """
    place.mkdir(parents=True, exist_ok=True)
    with _only_builder(place):
        for left in place.glob(".building-*"):  # of a builder that was killed
            shutil.rmtree(left)
        for program in missing(place):
            print(f"building {program.name} {program.version} into {place} ...", flush=True)  # noqa: T201
            with tempfile.TemporaryDirectory(dir=place, prefix=".building-") as unfinished:
                _build(program, Path(unfinished) / program.name)
                (Path(unfinished) / program.name).replace(place / program.name)


@contextmanager
def _only_builder(place: Path) -> Iterator[None]:
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel, however this process ends
        yield


def _build(program: Program, output: Path) -> None:
    stamp = f" -X {program.version_variable}={program.version}" if program.version_variable else ""
    subprocess.run(
        ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamp}", "-o", output, program.package],  # noqa: S607
        cwd=MODULES / program.name,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        check=True,
    )


def main() -> int:
    """Build; without Go, say how to get the programs, and fail where continuous integration needs them."""
    place = directory()
    if missing(place):
        if shutil.which("go") is None:
            print(remedy(place), file=sys.stderr)  # noqa: T201
            return 1 if os.environ.get("CI") else 0
        build(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
