# SPDX-License-Identifier: Apache-2.0
"""Programs of tests that are written in Go: built once from its module proxy, and kept in the user's cache."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and how it is built: the module in that directory pins the versions of everything in it."""

    name: str
    version: str
    package: str
    module: Path
    version_variable: str = ""


@dataclass(frozen=True, slots=True)
class ProgramSet:
    """Programs that are kept together."""

    programs: tuple[Program, ...]
    make_target: str
    place_variable: str
    """The environment variable that names a directory which has them."""

    def directory(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Return the directory of the programs, which may not exist."""
        if chosen := environment.get(self.place_variable):
            return Path(chosen)
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "inference-epp" / "-".join(f"{program.name}-{program.version}" for program in self.programs)

    def missing(self, place: Path) -> list[Program]:
        """Return the programs that are not in the directory."""
        return [program for program in self.programs if not os.access(place / program.name, os.X_OK)]

    def remedy(self, place: Path) -> str:
        """Return the sentence on what is missing and how to get it."""
        names = ", ".join(program.name for program in self.missing(place))
        return (
            f"no {names} in {place}: install Go 1.26 or newer and run `make {self.make_target}`, "
            f"or set {self.place_variable} to a directory that has {_pronoun(len(self.missing(place)))}"
        )

    def build(self, place: Path) -> None:
        """Build what is missing; a program appears whole or not at all, and a second builder waits for the first.

        Raises CalledProcessError if Go fails.
        """
        place.mkdir(parents=True, exist_ok=True)
        with _only_builder(place):
            for left in place.glob(".building-*"):  # of a builder that was killed
                shutil.rmtree(left)
            _build_all(self.missing(place), place)

    def main(self) -> int:
        """Build; without Go, say how to get the programs, and fail where continuous integration needs them."""
        place = self.directory()
        if self.missing(place):
            if shutil.which("go") is None:
                print(self.remedy(place), file=sys.stderr)  # noqa: T201
                return 1 if os.environ.get("CI") else 0
            self.build(place)
        return 0


def copy_of_module(directory: Path, module: str, path: str, copy: Path) -> None:
    """Copy a file or a directory of a module that a program in `directory` is built from, if it is not there yet.

    Raises CalledProcessError if Go fails.
    """
    if copy.exists():
        return
    found = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module],  # noqa: S607
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    original = Path(found.stdout.strip()) / path
    copy.parent.mkdir(exist_ok=True)
    if original.is_dir():
        # Not the modes: in Go's cache, nobody may write.
        shutil.copytree(original, copy, copy_function=shutil.copyfile)
        for each in (copy, *copy.rglob("*/")):
            each.chmod(0o755)
    else:
        shutil.copyfile(original, copy)


def _pronoun(count: int) -> str:
    return "it" if count == 1 else "them"


def _build_all(programs: Iterable[Program], place: Path) -> None:
    for program in programs:
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
        cwd=program.module,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        check=True,
    )
