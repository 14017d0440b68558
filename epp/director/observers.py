# SPDX-License-Identifier: Apache-2.0
"""Several observers of a director as one."""

from typing import Any

from epp.director.director import DirectorObserver, Refusal
from epp.director.policies import Rewrite
from epp.director.routing import Cause, Routing
from epp.framework.plugin import Plugin, Role
from epp.framework.request import Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.scheduling.guard import PluginObserver


class Observers(DirectorObserver):
    """Tells each of them everything, in order."""

    def __init__(self, *observers: DirectorObserver) -> None:
        self._observers = observers
        self._timers = [each for each in observers if type(each).plugin_called is not PluginObserver.plugin_called]
        if len(self._timers) == 1:
            self.plugin_called = self._timers[0].plugin_called  # type: ignore[method-assign]  # many for each request

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Tell of an error of a plugin."""
        for observer in self._observers:
            observer.plugin_failed(plugin, error, problem)

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Tell of a call of a plugin those who want to know: there are many for each request."""
        for observer in self._timers:
            observer.plugin_called(role, plugin, seconds)

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Tell of a rule that chose the model."""
        for observer in self._observers:
            observer.model_rewritten(request, rewrite)

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Tell of the number of candidates."""
        for observer in self._observers:
            observer.candidates_found(request, snapshot, eligible, left)

    def held(self, request: Request, plugin: str) -> None:
        """Tell of a request that waits."""
        for observer in self._observers:
            observer.held(request, plugin)

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Tell of a routed request."""
        for observer in self._observers:
            observer.routed(request, result, scheduling_seconds)

    def refused(self, refusal: Refusal) -> None:
        """Tell of a request that is not routed."""
        for observer in self._observers:
            observer.refused(refusal)

    def response_started(self, routing: Routing) -> None:
        """Tell of the headers of a response."""
        for observer in self._observers:
            observer.response_started(routing)

    def first_piece(self, routing: Routing) -> None:
        """Tell of the first piece of a response."""
        for observer in self._observers:
            observer.first_piece(routing)

    def completed(self, routing: Routing, cause: Cause) -> None:
        """Tell of the end of a routed request."""
        for observer in self._observers:
            observer.completed(routing, cause)
