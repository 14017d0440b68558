# SPDX-License-Identifier: Apache-2.0
"""Finds plugin classes by type name, or as `module:Class` if that is allowed, and builds instances."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.input_errors import read_parameters
from epp.framework.messages import described
from epp.framework.plugin import Parameters, Plugin
from epp.framework.suggestions import hint_at

GROUP = "epp.plugins"
_OURS = "inference-epp"


@cache
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001  the key of the cache
    """Return the entry points of the packages on the search path; cached, because this reads a hundred files."""
    return tuple(entry_points(group=GROUP))


class UnknownTypeError(ConfigurationError):
    """No plugin type with this name is registered."""


@dataclass(frozen=True, slots=True)
class BrokenType:
    """A registered plugin type that cannot be used."""

    type: str
    package: str
    """Installed package that registers the type."""
    reason: str


class Registry:
    """Plugin classes by type name; a class is imported when it is first used.

    A mistake in an entry point makes only its own type unusable. `modules` are the Python modules, including
    submodules, from which a configuration may name classes as `module:Class`; by default none, because an import runs
    the module.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None, *, modules: Iterable[str] = ()) -> None:
        self._points: dict[str, EntryPoint] = {}
        self._clashes: dict[str, BrokenType] = {}
        for point in _installed(tuple(sys.path)) if points is None else points:
            self._take(point)
        self._classes: dict[str, type[Plugin[Any]]] = {}
        self._modules = tuple(modules)

    @property
    def types(self) -> tuple[str, ...]:
        """All type names, sorted."""
        return tuple(sorted({*self._points, *self._classes}))

    def register(self, cls: type[Plugin[Any]]) -> None:
        """Add a class that is not installed, such as one of a test or a notebook."""
        self._classes[cls.plugin_type] = cls

    def find(self, type_name: str) -> type[Plugin[Any]]:
        """Return the class; raises UnknownTypeError, or ConfigurationError if it cannot be loaded."""
        found = self._classes.get(type_name)
        if found is None:
            found = self._classes[type_name] = self._from_module(type_name) or self._from_entry_point(type_name)
        return found

    def load_all(self) -> tuple[dict[str, type[Plugin[Any]]], list[BrokenType]]:
        """Return the classes of all types that can be loaded, and the types that cannot."""
        classes: dict[str, type[Plugin[Any]]] = {}
        broken = {clash.type: clash for clash in self._clashes.values()}
        for name in self.types:
            try:
                classes[name] = self.find(name)
            except ConfigurationError as error:
                broken.setdefault(name, BrokenType(name, _package(self._points[name]), str(error)))
        return classes, sorted(broken.values(), key=lambda each: each.type)

    def build(self, type_name: str, parameters: Mapping[str, object], *, name: str, clock: Clock) -> Plugin[Any]:
        """Return an instance; raises ParameterError for invalid parameters."""
        cls = self.find(type_name)
        return self.construct(cls, read_parameters(cls.parameters_type, parameters), name=name, clock=clock)

    def construct(self, cls: type[Plugin[Any]], parameters: Parameters, *, name: str, clock: Clock) -> Plugin[Any]:
        """Return an instance; raises ConfigurationError if the class refuses its parameters or fails."""
        try:
            return cls(parameters, name=name, clock=clock)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        except Exception as error:
            raise ConfigurationError(f"failed to initialize: {described(error, cls)}") from error

    def _take(self, point: EntryPoint) -> None:
        """Add an entry point; a type of two packages is unusable, unless one is this package, which then wins."""
        other = self._points.setdefault(point.name, point)
        if other.value == point.value:
            return
        if _package(point) == _OURS:
            self._points[point.name], point, other = point, other, point
        if _package(other) == _OURS:
            reason = f"type {point.name!r} belongs to {_OURS} itself: rename the type of {_package(point)}"
        else:
            both = " and ".join(sorted(f"{_package(one)} ({one.value})" for one in (other, point)))
            reason = f"type {point.name!r} is registered twice, by {both}: rename one, or uninstall its package"
        self._clashes[point.name] = BrokenType(point.name, _package(point), reason)

    def _from_entry_point(self, type_name: str) -> type[Plugin[Any]]:
        point = self._points.get(type_name)
        if point is None:
            raise UnknownTypeError(f"plugin type {type_name!r} is not registered; {hint_at(type_name, self.types)}")
        clash = self._clashes.get(type_name)
        if clash is not None and _package(point) != _OURS:
            raise ConfigurationError(clash.reason)
        cls = _loaded(point.load, f"plugin type {type_name!r} ({point.value})")
        if cls.plugin_type != type_name:
            raise ConfigurationError(
                f"entry point {type_name!r} refers to {point.value}, whose type is {cls.plugin_type!r}: make them equal"
            )
        return cls

    def _from_module(self, type_name: str) -> type[Plugin[Any]] | None:
        module_name, colon, class_name = type_name.partition(":")
        if not colon:
            return None
        if not any(module_name == allowed or module_name.startswith(f"{allowed}.") for allowed in self._modules):
            raise ConfigurationError(
                f"plugin type {type_name!r} names a Python class, and module {module_name!r} is not allowed: "
                f"start with --allow-plugin-modules {module_name}"
            )
        return _loaded(lambda: getattr(importlib.import_module(module_name), class_name), f"plugin type {type_name!r}")


def _loaded(load: Callable[[], object], what: str) -> type[Plugin[Any]]:
    """Return the loaded class; raises ConfigurationError if it cannot be loaded, or is not a plugin class."""
    try:
        loaded = load()
    except (Exception, SystemExit) as error:  # an import runs the module
        raise ConfigurationError(f"{what} cannot be loaded: {described(error)}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Plugin)):
        raise ConfigurationError(f"{what} is not a subclass of Plugin")
    if inspect.isabstract(loaded):
        raise ConfigurationError(f"{what} lacks {', '.join(sorted(loaded.__abstractmethods__))}")
    if not isinstance(getattr(loaded, "plugin_type", None), str):
        raise ConfigurationError(f"{what} has no plugin_type: set it to the name of the type")
    return loaded


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]
