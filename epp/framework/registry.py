"""Finds plugin classes by type name, or as `module:Class` where that is allowed, and builds instances."""

import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.parameters import read_parameters
from epp.framework.plugin import Parameters, Plugin

GROUP = "epp.plugins"


class UnknownTypeError(ConfigurationError):
    """No plugin type of that name is registered."""


class Registry:
    """Type names to classes; a class is imported when it is first asked for.

    `modules` are the Python modules from which a configuration may name classes as `module:Class`, submodules
    included; none by default, since to import a module is to run it.
    """

    def __init__(self, points: Mapping[str, EntryPoint] | None = None, *, modules: Iterable[str] = ()) -> None:
        self._points = {point.name: point for point in entry_points(group=GROUP)} if points is None else dict(points)
        self._classes: dict[str, type[Plugin[Any]]] = {}
        self._modules = tuple(modules)

    @property
    def types(self) -> tuple[str, ...]:
        """All type names, sorted."""
        return tuple(sorted({*self._points, *self._classes}))

    def register(self, cls: type[Plugin[Any]]) -> None:
        """Add a class that is not installed: a test's, or a notebook's."""
        self._classes[cls.plugin_type] = cls

    def find(self, type_name: str) -> type[Plugin[Any]]:
        """Return the class; raises UnknownTypeError, or ConfigurationError for one that cannot be loaded."""
        found = self._classes.get(type_name)
        if found is None:
            found = self._classes[type_name] = self._from_module(type_name) or self._from_entry_point(type_name)
        return found

    def build(self, type_name: str, parameters: Mapping[str, object], *, name: str, clock: Clock) -> Plugin[Any]:
        """Return an instance; raises ParameterError for parameters that do not fit."""
        cls = self.find(type_name)
        return self.construct(cls, read_parameters(cls.parameters_type, parameters), name=name, clock=clock)

    def construct(self, cls: type[Plugin[Any]], parameters: Parameters, *, name: str, clock: Clock) -> Plugin[Any]:
        """Return an instance; raises ConfigurationError where the class refuses its parameters after all."""
        try:
            return cls(parameters, name=name, clock=clock)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        except Exception as error:
            raise ConfigurationError(f"{type(error).__name__} as it was built: {error}") from error

    def _from_entry_point(self, type_name: str) -> type[Plugin[Any]]:
        point = self._points.get(type_name)
        if point is None:
            raise UnknownTypeError(f"plugin type {type_name!r} is not registered; {hint_at(type_name, self.types)}")
        try:
            loaded = point.load()
        except Exception as error:  # an import runs what the module holds
            raise ConfigurationError(f"plugin type {type_name!r} ({point.value}) cannot be loaded: {error}") from error
        cls = _plugin_class(loaded, f"plugin type {type_name!r} ({point.value})")
        if cls.plugin_type != type_name:
            raise ConfigurationError(
                f"entry point {type_name!r} leads to {point.value}, of type {cls.plugin_type!r}: make them equal"
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
        try:
            loaded = getattr(importlib.import_module(module_name), class_name)
        except Exception as error:  # an import runs what the module holds
            raise ConfigurationError(f"plugin type {type_name!r} cannot be loaded: {error}") from error
        return _plugin_class(loaded, f"plugin type {type_name!r}")


def _plugin_class(loaded: object, what: str) -> type[Plugin[Any]]:
    if not (isinstance(loaded, type) and issubclass(loaded, Plugin)):
        raise ConfigurationError(f"{what} is not a subclass of Plugin")
    return loaded
