# SPDX-License-Identifier: Apache-2.0
"""Reports on configurations in files, directories and standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from epp.cli.check_prices import price_findings
from epp.config import Assembly, Builder, InvalidConfigError, LoadedConfig, Problem, assemble
from epp.config.describe import Graph, describe
from epp.config.load import load_all, one_too_many
from epp.config.model import KIND
from epp.config.problems import written
from epp.config.sources import NoConfigError, decoded, read_file
from epp.framework import ConfigurationError

STDIN = "-"
_MOST_SENTENCES = 100
_ENDINGS = {".yaml", ".yml", ".json"}


class Finding(msgspec.Struct, frozen=True):
    """An error or a warning, for programs."""

    file: str
    line: int | None
    column: int | None
    inside: str | None
    """Place within a text that the file quotes, where that has no line of its own."""
    path: str
    message: str
    remedy: str | None

    @classmethod
    def of(cls, problem: Problem) -> "Finding":
        """Return the parts of a problem."""
        position = problem.position
        return cls(
            problem.origin,
            None if position is None else position.line,
            None if position is None else position.column,
            problem.inside or None,
            written(problem.path),
            problem.message,
            problem.remedy or None,
        )


class FileReport(msgspec.Struct, frozen=True):
    """The result for one configuration, or for a file without any."""

    file: str
    inside: str = ""
    """Such as `data[epp.yaml] of ConfigMap llm/epp`; empty for one that is no part of another object."""
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    """What depends on where the picker runs."""
    graph: Graph | None = None
    skipped: str = ""
    """Why a file of a directory was not looked into."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""
        return f"{self.file}, {self.inside}" if self.inside else self.file

    def for_programs(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "file": self.file,
            "inside": self.inside or None,
            "errors": [Finding.of(problem) for problem in self.errors],
            "warnings": [Finding.of(problem) for problem in self.warnings],
            "notes": [Finding.of(problem) for problem in self.notes],
            "graph": self.graph,
            "skipped": self.skipped or None,
        }


def check_all(paths: Iterable[Path], builder: Builder) -> list[FileReport]:
    """Return a report on each configuration in files, in the files of directories, and in standard input for `-`."""
    return [report for path in paths for report in _check(path, builder)]


def _check(path: Path, builder: Builder) -> Iterator[FileReport]:
    if path.is_dir():
        yield from _check_directory(path, builder)
        return
    origin = "stdin" if str(path) == STDIN else str(path)
    try:
        text = decoded(sys.stdin.buffer.read(), origin) if str(path) == STDIN else read_file(path)
        yield from _check_text(text, origin, builder)
    except InvalidConfigError as error:
        yield FileReport(origin, errors=error.problems)


def _check_directory(path: Path, builder: Builder) -> Iterator[FileReport]:
    """Check the files in a directory that hold configurations, and say why others are skipped."""
    found = False
    for file in sorted(each for each in path.iterdir() if each.suffix in _ENDINGS and each.is_file()):
        text = ""
        try:
            text = read_file(file)
            yield from _check_text(text, str(file), builder)
            found = True
        except NoConfigError as error:
            yield FileReport(str(file), skipped=error.problems[0].message)
        except InvalidConfigError as error:
            if KIND in text:
                found = True
                yield FileReport(str(file), errors=error.problems)
            else:
                yield FileReport(str(file), skipped=str(error.problems[0]).removeprefix(f"{file}:"))
    if not found:
        problem = Problem(f"holds no {KIND} in its {', '.join(sorted(_ENDINGS))} files", origin=str(path))
        yield FileReport(str(path), errors=(problem,))


def _check_text(text: str, origin: str, builder: Builder) -> Iterator[FileReport]:
    first, *others = load_all(text, origin)
    yield _check_config(first, builder)
    for other in others:
        report = _check_config(other, builder)
        surplus = one_too_many(first, other)
        if other.inside:  # a ConfigMap may well have several; only one can be run from the file as it is
            yield msgspec.structs.replace(report, warnings=(*report.warnings, surplus))
        else:
            yield msgspec.structs.replace(report, errors=(surplus, *report.errors), graph=None)


def _check_config(loaded: LoadedConfig, builder: Builder) -> FileReport:
    """Return the errors of a configuration, or its warnings and its graph."""
    report = FileReport(loaded.origin, loaded.inside)
    if loaded.unreadable:
        return msgspec.structs.replace(report, errors=loaded.problems)
    try:
        assembly = assemble(loaded, builder)
    except InvalidConfigError as error:
        return msgspec.structs.replace(report, errors=error.problems, warnings=error.warnings)
    except ConfigurationError as error:
        return msgspec.structs.replace(report, errors=(loaded.problem(error.problem, remedy=error.remedy),))
    prices = price_findings(assembly)
    return msgspec.structs.replace(
        report,
        warnings=(*assembly.warnings, *_on_inputs(loaded, assembly), *prices.warnings),
        notes=prices.notes,
        graph=describe(assembly),
    )


def _on_inputs(loaded: LoadedConfig, assembly: Assembly) -> Iterator[Problem]:
    """Yield what the plugins say of the files that they read, up to 100 sentences for each."""
    for plugin in assembly.plugins:
        inputs = plugin.inputs
        found = [*map(str, inputs.problems), *map(str, inputs.ignored), *inputs.remarks]
        yield from (loaded.problem(f"plugin {plugin.name!r}: {sentence}") for sentence in found[:_MOST_SENTENCES])
        if (more := len(found) - _MOST_SENTENCES) > 0:
            yield loaded.problem(f"plugin {plugin.name!r}: and {more} more problems of its files")
