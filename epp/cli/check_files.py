# SPDX-License-Identifier: Apache-2.0
"""Reports on configurations in files, directories and standard input."""

import asyncio
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from epp.config import Assembly, Builder, InvalidConfigError, LoadedConfig, Problem, assemble
from epp.config.describe import Graph, describe
from epp.config.document import written
from epp.config.load import NoConfigError, decoded, load_all, one_too_many, read_file
from epp.config.model import KIND
from epp.framework import ConfigurationError, Endpoint, SystemClock
from epp.framework.cluster_objects import HubAccess, ObjectKind
from epp.hardware.tagger import AcceleratorTagger
from epp.pool.collectors.tagging import Tagging
from epp.pool.discovery import FileDiscovery, PodFileDiscovery
from epp.routing.datastore import Datastore
from epp.telemetry.endpoints import REMEDY, prices_of

STDIN = "-"
_MOST_SENTENCES = 100
_ENDINGS = {".yaml", ".yml", ".json"}


def _finding(problem: Problem) -> dict[str, object]:
    """Return an error or a warning, for programs."""
    return {
        "file": problem.origin,
        "line": problem.position and problem.position.line,
        "column": problem.position and problem.position.column,
        "inside": problem.inside or None,
        "path": written(problem.path),
        "message": problem.message,
        "remedy": problem.remedy or None,
    }


class FileReport(msgspec.Struct, frozen=True):
    """The result for one configuration, or for a file without any."""

    file: str
    inside: str = ""
    """The enclosing object, such as `data[epp.yaml] of ConfigMap llm/epp`; empty for none."""
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    """Findings that depend on the environment of the picker."""
    graph: Graph | None = None
    skipped: str = ""
    """Reason that a file of a directory was skipped."""
    hubs: dict[HubAccess, tuple[ObjectKind, ...]] = {}
    """Hubs that its plugins read, with the kinds."""
    pools: tuple[str, ...] = ()
    """Names of the pools with this configuration, in a picker of several pools."""

    @property
    def name(self) -> str:
        """The pools, the file, and the part of it."""
        pools = f"{'pool' if len(self.pools) == 1 else 'pools'} {', '.join(self.pools)}: " if self.pools else ""
        return f"{pools}{self.file}{', ' if self.inside else ''}{self.inside}"

    def of_pools(self, *names: str) -> "FileReport":
        """Return the report on the configuration of these pools of a picker of several."""
        if not names or self.graph is None or not self.graph.names_all_endpoints:
            return msgspec.structs.replace(self, pools=names)
        message = "dataLayer.discovery is for one pool: leave it out, the endpoints are the pods of each InferencePool"
        problem = Problem(message, origin=self.file)
        return msgspec.structs.replace(self, pools=names, errors=(*self.errors, problem), graph=None)

    def for_programs(self) -> dict[str, object]:
        return {
            "file": self.file,
            "inside": self.inside or None,
            "errors": [*map(_finding, self.errors)],
            "warnings": [*map(_finding, self.warnings)],
            "notes": [*map(_finding, self.notes)],
            "graph": self.graph,
            "skipped": self.skipped or None,
            "pools": self.pools,
        }


def check_all(paths: Iterable[Path], builder: Builder) -> list[FileReport]:
    return [report for path in paths for report in _check(path, builder)]


def check_pools(
    names: Collection[str], directory: Path | None, others: Iterable[Path], builder: Builder
) -> list[FileReport]:
    """Return a report on each configuration of a picker of several pools.

    The file of a pool is NAME.yaml in the directory; pools without such a file use the `others`. Without names, each
    file of the directory belongs to a pool.
    """
    files = {} if directory is None else {path.stem: path for path in sorted(directory.glob("*.yaml"))}
    own = {name: files[name] for name in sorted(names or files) if name in files}
    reports = [report.of_pools(name) for name, path in own.items() for report in _check(path, builder)]
    without = [name for name in sorted(names) if name not in own]
    reports += [report.of_pools(*without) for report in check_all(others, builder)]
    skipped = "no pool of --pool-name has this name"
    return reports + [FileReport(str(path), skipped=skipped) for name, path in files.items() if name not in own]


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
    """Check the configurations in the files of a directory; report the reason for each skipped file."""
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
        problem = Problem(f"contains no {KIND} in its {', '.join(sorted(_ENDINGS))} files", origin=str(path))
        yield FileReport(str(path), errors=(problem,))


def _check_text(text: str, origin: str, builder: Builder) -> Iterator[FileReport]:
    first, *others = load_all(text, origin)
    yield _check_config(first, builder)
    for other in others:
        report = _check_config(other, builder)
        surplus = one_too_many(first, other)
        if other.inside:  # a ConfigMap may have several; a picker runs only one of a file
            yield msgspec.structs.replace(report, warnings=(*report.warnings, surplus))
        else:
            yield msgspec.structs.replace(report, errors=(surplus, *report.errors), graph=None)


def _check_config(loaded: LoadedConfig, builder: Builder) -> FileReport:
    """Return the errors of a configuration, or its warnings and its graph."""
    report = FileReport(loaded.origin, loaded.inside)
    try:
        assembly = assemble(loaded, builder)
    except InvalidConfigError as error:
        return msgspec.structs.replace(report, errors=error.problems, warnings=error.warnings)
    except ConfigurationError as error:
        return msgspec.structs.replace(report, errors=(loaded.problem(error.problem, remedy=error.remedy),))
    on_prices, notes = _on_prices(assembly)
    kinds = [kind for reading in assembly.readings for kind in reading.kinds if kind.hub is not None]
    hubs = {hub: tuple(kind for kind in kinds if kind.hub == hub) for kind in kinds if (hub := kind.hub) is not None}
    return msgspec.structs.replace(
        report,
        warnings=(*assembly.warnings, *_on_inputs(loaded, assembly), *on_prices),
        notes=notes,
        graph=describe(assembly),
        hubs=hubs,
    )


def _on_inputs(loaded: LoadedConfig, assembly: Assembly) -> Iterator[Problem]:
    """Yield the remarks of plugins about the files that they read, up to 100 for each."""
    for plugin in assembly.plugins:
        if isinstance(plugin, FileDiscovery):
            try:
                if Path(plugin.parameters.path).is_file():  # it may exist only on another machine
                    plugin.listed()
            except (ConfigurationError, OSError) as error:
                yield loaded.problem(f"plugin {plugin.name!r}: {error}")
        found = plugin.inputs.sentences
        yield from (loaded.problem(f"plugin {plugin.name!r}: {sentence}") for sentence in found[:_MOST_SENTENCES])
        if (more := len(found) - _MOST_SENTENCES) > 0:
            yield loaded.problem(f"plugin {plugin.name!r}: and {more} more problems of its files")


def _on_prices(assembly: Assembly) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return warnings about missing prices, or notes if the cluster of the picker may have them."""
    sources = [tagger for tagger in assembly.taggers if isinstance(tagger, AcceleratorTagger)]
    if not sources or not any(plugin.without_prices for plugin in assembly.plugins):
        return (), ()  # unknown hardware is a separate finding
    if assembly.sources:
        endpoints = _endpoints_of(assembly)
        return (() if endpoints is None else tuple(_certain(assembly, endpoints))), ()
    if any(source.has_prices for source in sources):
        return (), ()
    why = "this configuration has no prices and names no endpoints"
    if any(source.parameters.read_cluster for source in sources):
        return (), tuple(_of_plugins(assembly, f"{why}; without prices in the cluster's objects"))
    return tuple(_of_plugins(assembly, why)), ()


def _endpoints_of(assembly: Assembly) -> Sequence[Endpoint] | None:
    """Return the endpoints that the configuration names; None if they are not in its files."""
    found: list[Endpoint] = []
    try:
        for source in assembly.sources:
            if isinstance(source.plugin, FileDiscovery):
                found += source.plugin.listed()
            elif isinstance(source.plugin, PodFileDiscovery):
                store = Datastore(SystemClock())
                asyncio.run(source.plugin.start(store))
                found += store.endpoints
            else:
                return None
    except ConfigurationError:
        return None  # reported when the picker starts
    return list({endpoint.id: endpoint for endpoint in found}.values())


def _certain(assembly: Assembly, endpoints: Sequence[Endpoint]) -> Iterator[Problem]:
    store = Datastore(SystemClock())
    store.replace(endpoints)
    Tagging(store, assembly.taggers)
    prices = prices_of(store.snapshot())
    if not prices.any_known:
        yield from _of_plugins(assembly, "no endpoint has one")
    elif prices.missing:
        message = f"{len(prices.missing)} of {len(endpoints)} endpoints have no price: {prices.names}"
        yield assembly.loaded.problem(message, "dataLayer", "discovery", remedy=REMEDY)


def _of_plugins(assembly: Assembly, why: str) -> Iterator[Problem]:
    for plugin in assembly.plugins:
        if plugin.without_prices:
            message = f"plugin {plugin.name!r} uses prices, but {why}: {plugin.without_prices}"
            yield assembly.loaded.problem(message, *assembly.instances.path_of(plugin), remedy=REMEDY)
