# SPDX-License-Identifier: Apache-2.0
"""Calls plugins, measures the time of each call, and applies the error policy of the role."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar, TypeVarTuple

from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.messages import described
from epp.framework.plugin import OnError, Plugin, Role

T = TypeVar("T")
A = TypeVarTuple("A")


class PluginObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Record that a plugin raised; `problem` describes the error and where the plugin raised it."""

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record the duration of a call."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a plugin that raised and may be skipped."""

    problem: str


class Guard:
    """The only place where an error of a plugin is caught while a request is served."""

    __slots__ = ("_called", "_observer", "_timer")

    def __init__(self, observer: PluginObserver, *, timer: Callable[[], float] = perf_counter) -> None:
        self._observer = observer
        self._called = observer.plugin_called
        self._timer = timer

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Return the method's result, or Failure where the role is skipped on errors.

        Raises PluginFailedError where it is not, and the plugin's own RequestError where the role may refuse.
        """
        started = self._timer()
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            return self._judge(role, plugin, error)
        finally:
            self._called(role, plugin, self._timer() - started)

    def check(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Do the same for a check of a result; its time does not count for the plugin."""
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  the same
            return self._judge(role, plugin, error)

    async def wait(self, role: Role, plugin: Plugin[Any], awaited: Awaitable[T]) -> T | Failure:
        """Do the same for an awaitable that a plugin returned."""
        try:
            return await awaited
        except Exception as error:  # noqa: BLE001  the same
            return self._judge(role, plugin, error)

    def _judge(self, role: Role, plugin: Plugin[Any], error: Exception) -> Failure:
        if role.may_refuse and isinstance(error, RequestError):
            raise error
        problem = described(error, type(plugin))
        self._observer.plugin_failed(plugin.name, error, problem)
        if role.on_error is OnError.FAIL:
            raise PluginFailedError(plugin.name, problem) from error
        return Failure(problem)


class SchedulingObserver(PluginObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def profile_started(self, profile: str) -> None:
        """Record that the plugins of a profile are called from now on."""

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Record scores that were NaN or infinite and counted as 0."""

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Record scores that were below 0 or above 1 and counted as these."""
