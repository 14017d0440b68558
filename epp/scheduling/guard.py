"""Calls plugins, and applies the error policy of their role to what they raise."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.plugin import OnError, Plugin, Role

T = TypeVar("T")
A = TypeVarTuple("A")


class PluginObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def plugin_failed(self, plugin: str, error: Exception) -> None:
        """Record that a plugin raised."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a plugin that raised and may be skipped."""

    problem: str


class Guard:
    """The only place where an error of a plugin is caught while a request is served."""

    __slots__ = ("_observer",)

    def __init__(self, observer: PluginObserver) -> None:
        self._observer = observer

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Return the method's result, or Failure where the role is skipped on errors.

        Raises PluginFailedError where it is not, and the plugin's own RequestError where the role may refuse.
        """
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            return self._judge(role, plugin, error)

    async def wait(self, role: Role, plugin: Plugin[Any], awaited: Awaitable[T]) -> T | Failure:
        """Do the same for what a plugin has returned to be awaited."""
        try:
            return await awaited
        except Exception as error:  # noqa: BLE001  the same
            return self._judge(role, plugin, error)

    def _judge(self, role: Role, plugin: Plugin[Any], error: Exception) -> Failure:
        if role.may_refuse and isinstance(error, RequestError):
            raise error
        self._observer.plugin_failed(plugin.name, error)
        if role.on_error is OnError.FAIL:
            raise PluginFailedError(plugin.name, str(error)) from error
        return Failure(f"{type(error).__name__}: {error}")
