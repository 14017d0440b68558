# SPDX-License-Identifier: Apache-2.0
"""Dockerfiles without a container engine: their instructions, carried out below a directory."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

_PYTHON = ("python", sys.executable)


class Instruction(NamedTuple):
    name: str
    text: str


def instructions(text: str) -> list[Instruction]:
    """Return the instructions, each on one line, without comments."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(#|$)", line)]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def stages(found: list[Instruction]) -> Iterator[list[Instruction]]:
    """Yield the instructions of each stage, from its FROM to the next."""
    stage: list[Instruction] = []
    for instruction in found:
        if instruction.name == "FROM":
            if stage:
                yield stage
            stage = []
        if instruction.name == "FROM" or stage:
            stage.append(instruction)
    yield stage


def exec_form(found: list[Instruction], name: str) -> list[str]:
    """Return the words of the only instruction of that name."""
    (text,) = [each.text for each in found if each.name == name]
    return json.loads(text)


class Ignored:
    """The rules of a `.dockerignore`; the last one that matches counts."""

    def __init__(self, text: str) -> None:
        self._rules = [line for line in text.splitlines() if line and not line.startswith("#")]

    def __call__(self, path: str) -> bool:
        ignored = False
        parents = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
        for rule in self._rules:
            pattern = rule.removeprefix("!")
            if any(fnmatch(each, pattern) or fnmatch(f"./{each}", pattern.replace("**", "*")) for each in parents):
                ignored = not rule.startswith("!")
        return ignored


class Build:
    """A stage that is built below `root`: its absolute paths are there, and its interpreter is that of the tests."""

    def __init__(self, context: Path, root: Path) -> None:
        self.root = root
        self._context = context
        self._ignored = Ignored((context / ".dockerignore").read_text())
        self._directory = root

    def carry_out(self, stage: list[Instruction]) -> None:
        for instruction in stage:
            if instruction.name == "WORKDIR":
                self._directory = self.root / instruction.text.removeprefix("/")
                self._directory.mkdir(parents=True)
            elif instruction.name == "COPY":
                *sources, target = instruction.text.split()
                for source in sources:
                    self._copy(source, target)
            elif instruction.name == "RUN":
                self._run(instruction.text)

    def path(self, text: str) -> str:
        """Return a command or a path with its absolute paths below the root."""
        return re.sub(r"(?<![\w.])/(?=build\b|opt\b|dist\b|src\b)", f"{self.root}/", text)

    def _copy(self, source: str, target: str) -> None:
        place, origin = self._directory / target, self._context / source
        for path in sorted(origin.rglob("*")) if origin.is_dir() else [origin]:
            if path.is_dir() or self._ignored(str(path.relative_to(self._context))):
                continue
            copied = place / (path.relative_to(origin) if origin.is_dir() else path.name)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)

    def _run(self, command: str) -> None:
        (self.root / "bin").mkdir(exist_ok=True)
        python = self.root / "bin" / _PYTHON[0]
        if not python.exists():
            python.symlink_to(_PYTHON[1])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = f"{self.root / 'bin'}:{environment['PATH']}"
        ended = subprocess.run(
            ["sh", "-ec", self.path(command)],  # noqa: S607
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert ended.returncode == 0, f"RUN {command}\n{ended.stdout}{ended.stderr}"
