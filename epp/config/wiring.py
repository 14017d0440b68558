# SPDX-License-Identifier: Apache-2.0
"""Data flow between plugins: adds missing producers, and refuses reads that cannot be satisfied."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Any

from epp.config.instances import Instances
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Datum, Plugin, R, Stage, roles_of
from epp.framework.request import DataKey


def add_missing_producers(instances: Instances) -> None:
    """Instantiate the default producer of everything that is read and not written, until all of it is."""
    reported: set[tuple[str, Datum]] = set()
    while True:
        written = {datum for plugin in instances for datum in plugin.writes}
        missing = [
            (plugin, datum)
            for plugin in instances
            for datum in plugin.reads
            if (isinstance(datum, DataKey) or datum.default_producer)
            and datum not in written
            and (plugin.name, datum) not in reported
            and getattr(datum, "producer", "") not in instances.inactive
        ]
        if not missing:
            return
        reader, datum = missing[0]
        reported.add((reader.name, datum))
        problem = _cannot_be_added(datum)
        if problem and instances.incomplete:
            continue  # one of those that could not be built may write it
        if problem:
            instances.fail(f"plugin {reader.name!r} reads {datum.name!r}{problem}", *instances.path_of(reader))
        else:
            _warn_of_another(reader, datum, instances)
            _add(datum.default_producer, reader, datum, instances)


def check_order(instances: Instances) -> None:
    """Refuse plugins that read request data before it is written."""
    writers = {key: plugin for plugin in instances for key in plugin.writes}
    for reader in instances:
        for key in reader.reads:
            writer = writers.get(key)
            if writer is None or writer is reader or not isinstance(key, DataKey):
                continue
            if _stage(writer) > _stage(reader):
                instances.fail(
                    f"plugin {reader.name!r} reads {key.name!r}, which {writer.name!r} writes only later in a request",
                    *instances.path_of(reader),
                )


def in_order(plugins: Iterable[R]) -> tuple[R, ...]:
    """Sort so that each plugin comes after those whose data it reads; otherwise in the order of declaration.

    Raises ConfigurationError for plugins that read each other's data in a circle.
    """
    declared = tuple(plugins)
    writers = {key: plugin for plugin in declared for key in plugin.writes}
    sorter: TopologicalSorter[R] = TopologicalSorter()
    for plugin in declared:
        wanted = (*plugin.reads, *plugin.may_read)
        sorter.add(plugin, *(writers[key] for key in wanted if key in writers and writers[key] is not plugin))
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(plugin.name for plugin in error.args[1])
        raise ConfigurationError(f"plugins read each other's data in a circle: {names}") from error


def _add(kind: str, reader: Plugin[Any], datum: Datum, instances: Instances) -> None:
    try:
        instances.add(kind, f"{reader.name} reads {datum.name}")
    except ConfigurationError as error:
        instances.fail(error.problem, *instances.path_of(reader), remedy=error.remedy)


def _cannot_be_added(datum: Datum) -> str:
    """Say why no producer can be added for it; empty where one can."""
    if isinstance(datum, DataKey) and datum.producer:
        return f" from producer {datum.producer!r}, which is not declared"
    if not datum.default_producer:
        return ", which no plugin here writes"
    return ""


def _warn_of_another(reader: Plugin[Any], datum: Datum, instances: Instances) -> None:
    """Warn where a producer of the type is declared under a name that the reader does not name."""
    for other in instances:
        if other.plugin_type == datum.default_producer:
            instances.warn(
                f"plugin {reader.name!r} reads {datum.name!r} from an instance of {datum.default_producer} that is "
                f"added for it, not from {other.name!r}: name that one in its parameters, or give it no own name",
                *instances.path_of(reader),
            )


def _stage(plugin: Plugin[Any]) -> Stage:
    return min((cls.role.stage for cls in roles_of(type(plugin))), default=Stage.BACKGROUND)
