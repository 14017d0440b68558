"""Finds plugin classes by type name among the installed `epp.plugins` entry points and builds instances."""

import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

import msgspec

from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.plugins import Parameters, Plugin

GROUP = "epp.plugins"


class Registry:
    """Type names to classes; a class is imported when it is first asked for."""

    def __init__(self, points: Mapping[str, EntryPoint] | None = None) -> None:
        self._points = {point.name: point for point in entry_points(group=GROUP)} if points is None else dict(points)
        self._classes: dict[str, type[Plugin[Parameters]]] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """All type names, sorted."""
        return tuple(sorted({*self._points, *self._classes}))

    def register(self, cls: type[Plugin[Parameters]]) -> None:
        """Add a class that is not installed: a test's, or a notebook's."""
        self._classes[cls.plugin_type] = cls

    def find(self, type_name: str) -> type[Plugin[Parameters]]:
        """Return the class; raises ConfigurationError for a type that is not known or not loadable."""
        found = self._classes.get(type_name)
        if found is not None:
            return found
        point = self._points.get(type_name)
        if point is None:
            near = difflib.get_close_matches(type_name, self.types, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"plugin type {type_name!r} is not registered{hint}")
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"plugin type {type_name!r} ({point.value}) cannot be loaded: {error}") from error
        if not (isinstance(loaded, type) and issubclass(loaded, Plugin)):
            raise ConfigurationError(f"plugin type {type_name!r} ({point.value}) is not a subclass of Plugin")
        if loaded.plugin_type != type_name:
            raise ConfigurationError(
                f"entry point {type_name!r} leads to {point.value}, of type {loaded.plugin_type!r}: make them equal"
            )
        self._classes[type_name] = loaded
        return loaded

    def build(self, type_name: str, parameters: Mapping[str, object], *, name: str, clock: Clock) -> Plugin[Parameters]:
        """Return an instance; raises ConfigurationError for parameters that do not fit."""
        cls = self.find(type_name)
        try:
            typed: Parameters = msgspec.convert(dict(parameters), cls.parameters_type)
            return cls(typed, name=name, clock=clock)
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigurationError(f"plugin {name!r} (type {type_name}): {error}") from error
