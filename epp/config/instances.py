# SPDX-License-Identifier: Apache-2.0
"""The plugin instances of one configuration, by name: built as the file says, or kept from the one before."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from epp.config.document import Path
from epp.config.load import LoadedConfig
from epp.config.model import PluginRef, PluginSpec
from epp.config.problems import InvalidConfigError, Problem, in_order_of_the_file
from epp.config.upstream import FLOW_CONTROL_TYPES, NOT_YET, WITHOUT_TASK
from epp.framework.clock import Clock
from epp.framework.corrections import correct
from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.parameters import ParameterError, read_parameters
from epp.framework.plugin import Parameters, Plugin, Stability
from epp.framework.registry import Registry, UnknownTypeError

Role = TypeVar("Role", bound=Plugin[Any])

_LISTED = "`epp plugins` lists all types"


@dataclass(frozen=True, slots=True)
class Builder:
    """Dependencies of building instances."""

    registry: Registry
    clock: Clock
    experimental: bool = False
    """Whether plugins of stability Alpha may be used."""
    previous: Mapping[str, Plugin[Any]] = field(default_factory=dict)
    """Instances of the configuration before; one of the same name, type and parameters is kept, with its state."""


class Instances:
    """Filled in the order of the file; problems are gathered, so that a user sees all of them at once."""

    def __init__(self, loaded: LoadedConfig, builder: Builder) -> None:
        self._loaded = loaded
        self._builder = builder
        self._by_name: dict[str, Plugin[Any]] = {}
        self._paths: dict[str, Path] = {}
        self._given: dict[str, frozenset[str]] = {}
        self._unusable: dict[str, str] = {}
        self.implied: dict[str, str] = {}
        """Reason for each instance that the file does not declare."""
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def __iter__(self) -> Iterator[Plugin[Any]]:
        return iter(self._by_name.values())

    @property
    def by_name(self) -> Mapping[str, Plugin[Any]]:
        """All instances: those of the file first, then the implied ones."""
        return self._by_name

    @property
    def inactive(self) -> Mapping[str, str]:
        """Types of declared instances that have no effect here, by name."""
        return self._unusable

    def fail(self, message: str, *path: str | int) -> None:
        """Record a problem that makes the configuration unusable."""
        self.problems.append(self._loaded.problem(message, *path))

    def warn(self, message: str, *path: str | int) -> None:
        """Record a warning."""
        self.warnings.append(self._loaded.problem(message, *path))

    def raise_problems(self) -> None:
        """Raise InvalidConfigError where there is any problem."""
        if self.problems:
            raise InvalidConfigError(in_order_of_the_file(self.problems))

    def path_of(self, plugin: Plugin[Any]) -> Path:
        """Return where the file declares the plugin; the top for one that it does not."""
        return self._paths.get(plugin.name, ())

    def gives(self, plugin: Plugin[Any], parameter: str) -> bool:
        """Return whether the file itself sets the parameter."""
        return parameter in self._given.get(plugin.name, ())

    def declare(self, spec: PluginSpec, index: int) -> None:
        """Build what one entry of `plugins` says."""
        path: Path = ("plugins", index)
        name = spec.instance_name
        if name in self._by_name or name in self._unusable:
            self.fail(f"two plugins are named {name!r}: give one of them another name", *path)
            return
        if not self._knows(spec, path):
            return
        self._paths[name] = path
        self._given[name] = frozenset(spec.parameters or {})
        try:
            plugin = self._make(spec.type, name, spec.parameters or {})
        except ParameterError as error:
            self._unusable[name] = spec.type
            self.fail(f"plugin {name!r}: {error}", *path, "parameters", *error.path)
        except UnknownTypeError as error:
            self._unusable[name] = spec.type
            self.fail(str(error), *path, "type")
        except ConfigurationError as error:
            self._unusable[name] = spec.type
            self.fail(f"plugin {name!r}: {error}", *path)
        else:
            self._by_name[name] = plugin
            for place, message in correct(plugin.parameters_type, spec.parameters or {})[1]:
                self.warn(f"plugin {name!r}: {message}", *path, "parameters", *place)
            self._judge(plugin, path)

    def ensure(self, type_name: str, role: type[Role], why: str) -> Role:
        """Return the first instance of that type, or a new one with defaults; raises ConfigurationError."""
        plugin = next((p for p in self._by_name.values() if p.plugin_type == type_name), None) or self.add(
            type_name, why
        )
        if not isinstance(plugin, role):
            raise ConfigurationError(f"plugin {plugin.name!r} (type {type_name}) is no {role.__name__}")
        return plugin

    def add(self, type_name: str, why: str) -> Plugin[Any]:
        """Build an instance with defaults under the name of its type; raises ConfigurationError."""
        if type_name in self._by_name:
            raise ConfigurationError(
                f"a plugin of type {type_name!r} is needed ({why}), and the name is taken by one of another type"
            )
        plugin = self._by_name[type_name] = self._make(type_name, type_name, {})
        self.implied[type_name] = why
        return plugin

    def of(self, role: type[Role]) -> tuple[Role, ...]:
        """Return all instances with that role."""
        return tuple(plugin for plugin in self._by_name.values() if isinstance(plugin, role))

    def may_lack(self, role: type[Role]) -> bool:
        """Return whether a plugin that could not be built may have that role."""
        return any(self._may_be(kind, role) for kind in self._unusable.values())

    def resolve(self, ref: PluginRef, role: type[Role], *path: str | int) -> Role | None:
        """Return the plugin referred to; None, and a problem noted, where there is none of that role."""
        return self.resolve_name(ref.plugin_ref, role, *path, "pluginRef")

    def resolve_name(self, name: str, role: type[Role], *path: str | int) -> Role | None:
        """Do the same for a bare name."""
        plugin = self._by_name.get(name)
        if plugin is None:
            kind = self._unusable.get(name)
            if kind is None:
                self.fail(f"no plugin is named {name!r}; {hint_at(name, self._by_name)}", *path)
            elif kind in FLOW_CONTROL_TYPES or kind in WITHOUT_TASK:
                self.fail(f"plugin type {kind!r} is known, not supported yet: it cannot be used here", *path)
            return None
        if not isinstance(plugin, role):
            self.fail(f"plugin {name!r} (type {plugin.plugin_type}) is no {role.__name__}", *path)
            return None
        return plugin

    def connect(self) -> None:
        """Give each plugin those that its parameters refer to."""
        for plugin in tuple(self._by_name.values()):
            path = self.path_of(plugin)
            found: dict[str, Plugin[Any]] = {}
            for parameter, name in plugin.references.items():
                target = self.resolve_name(name, Plugin, *path, "parameters", *parameter.split("."))
                if target is not None:
                    found[parameter] = target
            if len(found) < len(plugin.references):
                continue
            try:
                plugin.connect(found)
            except ValueError as error:
                self.fail(f"plugin {plugin.name!r}: {error}", *path, "parameters")

    def _knows(self, spec: PluginSpec, path: Path) -> bool:
        """Return whether the type can be built; record why not."""
        kind, name = spec.type, spec.instance_name
        if kind in self._builder.registry.types or ":" in kind:
            return True
        self._unusable[name] = kind
        if kind in FLOW_CONTROL_TYPES:
            self.warn(
                f"plugin type {kind!r} ({FLOW_CONTROL_TYPES[kind]}) is known, not supported yet: it has no effect",
                *path,
            )
        elif kind in WITHOUT_TASK:
            self.warn(f"plugin type {kind!r} has no effect: {WITHOUT_TASK[kind]}", *path)
        elif kind in NOT_YET:
            self.fail(f"plugin type {kind!r} is known, not supported yet", *path, "type")
        else:
            known = (*self._builder.registry.types, *FLOW_CONTROL_TYPES, *NOT_YET)
            self.fail(f"plugin type {kind!r} is not registered; {hint_at(kind, known, _LISTED)}", *path, "type")
        return False

    def _may_be(self, kind: str, role: type[Plugin[Any]]) -> bool:
        if kind in FLOW_CONTROL_TYPES or kind in WITHOUT_TASK or kind in NOT_YET:
            return False
        try:
            return issubclass(self._builder.registry.find(kind), role)
        except ConfigurationError:
            return True

    def _make(self, type_name: str, name: str, parameters: Mapping[str, object]) -> Plugin[Any]:
        registry = self._builder.registry
        cls = registry.find(type_name)
        if cls.stability is Stability.ALPHA and not self._builder.experimental:
            raise ConfigurationError(
                f"type {type_name} is experimental: start with --allow-experimental-plugins to use it"
            )
        typed: Parameters = read_parameters(cls.parameters_type, parameters)
        before = self._builder.previous.get(name)
        if before is not None and type(before) is cls and before.parameters == typed and not before.references:
            return before
        return registry.construct(cls, typed, name=name, clock=self._builder.clock)

    def _judge(self, plugin: Plugin[Any], path: Path) -> None:
        if plugin.stability is Stability.DEPRECATED:
            self.warn(f"plugin type {plugin.plugin_type!r} is deprecated", *path)
        for warning in plugin.warnings:
            self.warn(f"plugin {plugin.name!r}: {warning}", *path, "parameters")
