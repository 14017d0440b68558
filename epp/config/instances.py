# SPDX-License-Identifier: Apache-2.0
"""The plugin instances of one configuration by name: new ones, or unchanged ones of the previous configuration."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from epp.config.document import InvalidConfigError, Path, Problem, in_order_of_the_file
from epp.config.load import LoadedConfig
from epp.config.model import NOT_YET, WITHOUT_TASK, PluginRef, PluginSpec
from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.input_errors import mistakes_in, named_at_the_start, read_parameters, read_struct
from epp.framework.limits import as_written, correct
from epp.framework.plugin import Parameters, Plugin, Stability
from epp.framework.registry import Registry, UnknownTypeError
from epp.framework.suggestions import hint_at, nearest

Role = TypeVar("Role", bound=Plugin[Any])
T = TypeVar("T")

_LISTED = "`epp plugins` lists all types"


@dataclass(frozen=True, slots=True)
class Builder:
    registry: Registry
    clock: Clock
    experimental: bool = False
    """Whether plugins of stability Alpha may be used."""
    previous: Mapping[str, Plugin[Any]] = field(default_factory=dict)
    """Instances of the previous configuration; an unchanged one is kept with its state."""
    object_paths: tuple[str, ...] = ()
    """Files with objects for plugins that read objects."""
    any_pool_object_paths: tuple[str, ...] = ()
    """Files with objects for plugins that do not depend on the pool; used if `object_paths` is empty."""


class Instances:
    """Plugin instances in the order of the file; problems are collected, so that a user sees all of them."""

    def __init__(self, loaded: LoadedConfig, builder: Builder) -> None:
        self._loaded = loaded
        self._builder = builder
        self._registry = builder.registry
        self.by_name: dict[str, Plugin[Any]] = {}
        """All instances: declared ones, then implied ones."""
        self._paths: dict[str, Path] = {}
        self._given: dict[str, frozenset[str]] = {}
        self.inactive: dict[str, str] = {}
        """Types of declared instances that have no effect, by name."""
        self.implied: dict[str, str] = {}
        """Reason for each instance that the file does not declare."""
        self.problems: list[Problem] = list(loaded.problems)
        self.warnings: list[Problem] = []
        self.unconnected: set[str] = set()
        """Names of plugins with an unresolved reference."""

    def __iter__(self) -> Iterator[Plugin[Any]]:
        return iter(self.by_name.values())

    def fail(self, message: str, *path: str | int, remedy: str = "") -> None:
        """Record a problem that makes the configuration unusable."""
        self.problems.append(self._loaded.problem(message, *path, remedy=remedy))

    def attempt(self, step: Callable[[], T], *path: str | int) -> T | None:
        """Run a step; record its ConfigurationError as a problem and return None."""
        try:
            return step()
        except ConfigurationError as error:
            self.fail(error.problem, *path, remedy=error.remedy)
            return None

    def warn(self, message: str, *path: str | int) -> None:
        self.warnings.append(self._loaded.problem(message, *path))

    def raise_problems(self) -> None:
        if self.problems:
            raise InvalidConfigError(in_order_of_the_file(self.problems), in_order_of_the_file(self.warnings))

    def path_of(self, plugin: Plugin[Any]) -> Path:
        """Return the place of the plugin in the file; empty for an implied one."""
        return self._paths.get(plugin.name, ())

    def gives(self, plugin: Plugin[Any], parameter: str) -> bool:
        return parameter in self._given.get(plugin.name, ())

    def declare(self, spec: PluginSpec, index: int) -> None:
        path: Path = ("plugins", index)
        name = spec.instance_name
        if name in self._paths:
            self.fail(f"two plugins are named {name!r}", *path, remedy="give one of them another name")
            return
        self._paths[name] = path
        if not self._is_buildable(spec, path):
            return
        self._given[name] = frozenset(spec.parameters or {})
        try:
            cls = self._registry.find(spec.type)
        except UnknownTypeError as error:
            self.fail(error.problem, *path, "type", remedy=error.remedy)
            return
        except ConfigurationError as error:
            self.fail(f"plugin {name!r}: {error.problem}", *path, remedy=error.remedy)
            return
        if self._build(cls, name, spec.parameters or {}, path):
            plugin = self.by_name[name]
            if plugin.stability is Stability.DEPRECATED:
                self.warn(f"{_called(name, plugin.plugin_type)} is deprecated", *path)
            for warning in plugin.warnings:
                self.warn(f"plugin {name!r}: {warning}", *path, "parameters")

    def _build(self, cls: type[Plugin[Any]], name: str, given: Mapping[str, object], path: Path) -> bool:
        """Build a declared plugin; on failure, record the problem and return False."""
        parameters, corrections = correct(cls.parameters_type, given)
        if (problem := self._not_allowed(cls)) is not None:
            self.fail(f"plugin {name!r}: {problem.problem}", *path, remedy=problem.remedy)
        mistakes = mistakes_in(cls.parameters_type, parameters)
        for mistake in mistakes:
            message = f"plugin {name!r}: {mistake.problem}"
            self.fail(message, *path, "parameters", *as_written(mistake.path, given), remedy=mistake.remedy)
        if problem is not None or mistakes:
            return False
        try:
            typed = cls.parameters_beside(read_struct(cls.parameters_type, parameters), tuple(self))
            plugin = self._instance(cls, typed, name)
        except ConfigurationError as error:
            where = named_at_the_start(error.problem, parameters)
            begin = ("parameters", *as_written(where, given)) if where else ()
            self.fail(f"plugin {name!r}: {error.problem}", *path, *begin, remedy=error.remedy)
            return False
        self.by_name[name] = plugin
        for place, message in corrections:
            self.warn(f"plugin {name!r}: {message}", *path, "parameters", *place)
        return True

    def ensure(self, type_name: str, role: type[Role], why: str) -> Role:
        """Return the first instance of that type, or a new one with defaults; raises ConfigurationError."""
        plugin = next((each for each in self if each.plugin_type == type_name), None) or self.add(type_name, why)
        if not isinstance(plugin, role):
            raise ConfigurationError(f"plugin {plugin.name!r} (type {type_name}) does not implement {role.__name__}")
        return plugin

    def add(self, type_name: str, why: str) -> Plugin[Any]:
        """Build an instance with defaults under the name of its type; raises ConfigurationError."""
        if type_name in self.by_name:
            raise ConfigurationError(
                f"a plugin of type {type_name!r} is needed ({why}), but a plugin of another type has this name"
            )
        cls = self._registry.find(type_name)
        if (problem := self._not_allowed(cls)) is not None:
            raise problem
        typed = cls.parameters_beside(read_parameters(cls.parameters_type, {}), tuple(self))
        plugin = self.by_name[type_name] = self._instance(cls, typed, type_name)
        self.implied[type_name] = why
        return plugin

    def of(self, role: type[Role]) -> tuple[Role, ...]:
        return tuple(plugin for plugin in self if isinstance(plugin, role))

    def resolve(self, ref: PluginRef, role: type[Role], *path: str | int) -> Role | None:
        """Return the plugin of a reference; if there is none with that role, record a problem and return None."""
        return self.resolve_name(ref.plugin_ref, role, *path, "pluginRef")

    def resolve_name(self, name: str, role: type[Role], *path: str | int) -> Role | None:
        """Like `resolve`, for a plain name."""
        plugin = self.by_name.get(name)
        if isinstance(plugin, role):
            return plugin
        if plugin is not None:
            self.fail(f"plugin {name!r} (type {plugin.plugin_type}) does not implement {role.__name__}", *path)
        elif name in self.inactive:
            kind = self.inactive[name]
            self.fail(f"plugin type {kind!r} is known but not supported yet: it cannot be used here", *path)
        else:
            self._fail_unknown(name, [one for one in self.by_name if one not in self.implied], *path)
        return None

    def _fail_unknown(self, name: str, known: Collection[str], *path: str | int) -> None:
        types = self._registry.types
        of_type = [plugin.name for plugin in self if plugin.plugin_type == name]
        remedy = hint_at(name, known)
        if of_type:
            remedy = f"the one of that type is named {of_type[0]!r}: write that name"
        elif name in types:
            remedy = f"add `- type: {name}` under plugins"
        elif nearest(name, known) is None and (near := nearest(name, types)) is not None:
            remedy = f"did you mean the type {near!r}? Then add `- type: {near}` under plugins"
        self.fail(f"no plugin is named {name!r}", *path, remedy=remedy)

    def connect(self) -> None:
        for plugin in tuple(self):
            path = (*self.path_of(plugin), "parameters")
            found: dict[str, Plugin[Any]] = {}
            for parameter, name in plugin.references.items():
                if (target := self.resolve_name(name, Plugin, *path, *parameter.split("."))) is not None:
                    found[parameter] = target
            if len(found) < len(plugin.references):
                self.unconnected.add(plugin.name)
                continue
            try:
                plugin.connect(found)
            except ValueError as error:
                where = named_at_the_start(str(error), plugin.references)
                self.fail(f"plugin {plugin.name!r}: {error}", *path, *where)
                self.unconnected.add(plugin.name)

    def _is_buildable(self, spec: PluginSpec, path: Path) -> bool:
        """Whether the type can be built; records the problem if not."""
        kind, name = spec.type, spec.instance_name
        if kind in self._registry.types or ":" in kind:
            return True
        if kind in WITHOUT_TASK:
            self.inactive[name] = kind
            self.warn(f"{_called(name, kind)} has no effect: {WITHOUT_TASK[kind]}", *path)
        elif kind in NOT_YET:
            self.fail(f"plugin type {kind!r} is known but not supported yet", *path, "type")
        else:
            known = (*self._registry.types, *NOT_YET)
            self.fail(f"plugin type {kind!r} is not registered", *path, "type", remedy=hint_at(kind, known, _LISTED))
        return False

    def _not_allowed(self, cls: type[Plugin[Any]]) -> ConfigurationError | None:
        if cls.stability is not Stability.ALPHA or self._builder.experimental:
            return None
        remedy = "start with --allow-experimental-plugins to use it"
        return ConfigurationError(f"type {cls.plugin_type} is experimental", remedy=remedy)

    def _instance(self, cls: type[Plugin[Any]], typed: Parameters, name: str) -> Plugin[Any]:
        """Return the unchanged instance of the previous configuration, or a new one."""
        before = self._builder.previous.get(name)
        if before is not None and type(before) is cls and before.parameters == typed and not before.references:
            return before
        return self._registry.construct(cls, typed, name=name, clock=self._builder.clock)


def _called(name: str, kind: str) -> str:
    return f"plugin type {kind!r}" if name == kind else f"plugin {name!r} of type {kind!r}"
