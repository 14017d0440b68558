# SPDX-License-Identifier: Apache-2.0
"""Metric series of model rewrites, bounded: clients choose the names of models that generic rules are for."""

from epp.director import Rewrite
from epp.framework import Request
from epp.observability.families import Counters
from epp.observability.request_series import MAX_COMBINATIONS, MAX_UNKNOWN, OTHER, shortened


class RewriteSeries:
    """Counts each choice of a model.

    Beyond 16 models by generic rules, a model is counted under `other`; so is everything beyond 256 combinations.
    """

    def __init__(self, counter: Counters) -> None:
        self._counter = counter
        self._known: set[tuple[str, str, str]] = set()
        self._by_clients: set[str] = set()

    def count(self, request: Request, rewrite: Rewrite) -> None:
        """Count a request whose model a rule has chosen."""
        model = shortened(request.body.model)
        if rewrite.generic and model not in self._by_clients:
            if len(self._by_clients) < MAX_UNKNOWN:
                self._by_clients.add(model)
            else:
                model = OTHER
        labels = shortened(rewrite.name), model, shortened(request.model)
        if labels not in self._known and len(self._known) >= MAX_COMBINATIONS:
            labels = OTHER, OTHER, OTHER
        self._known.add(labels)
        self._counter.labels(*labels).inc()
