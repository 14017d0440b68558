# SPDX-License-Identifier: Apache-2.0
"""Metrics of a pool of three endpoints, to which events are fed by hand."""

from epp.framework import (
    Destination,
    Endpoint,
    Headers,
    ManualClock,
    ProfileResult,
    Request,
    RequestBody,
    SchedulingResult,
)
from epp.framework.plugin import Guard
from epp.framework.snapshot import WAITING
from epp.framework.testing import candidates
from epp.plugins.profile_handlers import SingleProfileHandler
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, ParserTable, Pipeline, Routing
from epp.routing.outliers.outlier_detector import OutlierDetector
from epp.routing.scheduling.scheduler import Scheduler
from epp.telemetry.metrics import Metrics
from epp.telemetry.request_series import MAX_COMBINATIONS

POOL = candidates(waiting=[0])
PICKED = ProfileResult("default", POOL, POOL.values(WAITING), POOL.slots)
UNUSED = Scheduler({}, SingleProfileHandler(), SingleProfileHandler())
RESULT = SchedulingResult(Destination(PICKED), {"default": PICKED}, {})
ONE = Endpoint("one", "10.0.0.1", 8000)
TWO = Endpoint("two", "10.0.0.2", 8000)
SILENT = Endpoint("silent", "10.0.0.3", 8000)


class Page:
    """Metrics that start at 0 s on a clock that stands still, and their page."""

    def __init__(self, most: int = MAX_COMBINATIONS) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics("pool", self.clock, max_combinations=most)
        self.store = Datastore(self.clock)
        self.store.replace([ONE, TWO, SILENT])

    def route(
        self, model: str = "m", *, flow: str = "f", target: str = "", streaming: bool = False, size_bytes: int = 0
    ) -> Routing:
        request = Request(
            "r",
            RequestBody(model=model, streaming=streaming),
            fairness_id=flow,
            target_model=target,
            size_bytes=size_bytes,
            received_at=self.clock.now(),
            began_at=self.clock.now(),
        )
        self.metrics.routed(request, RESULT, scheduling_seconds=0.0003)
        return Routing(
            request,
            RESULT,
            self.store.ledger.open(0),
            Pipeline(ParserTable(()), UNUSED),
            guard=Guard(self.metrics),
            observer=self.metrics,
            find=self.store.find,
            outliers=OutlierDetector(self.store, self.clock),
        )

    def stream(self, *pauses: float, tokens: int) -> Routing:
        """A whole streamed response: a piece after each pause, and the end, which tells the tokens."""
        routing = self.route(streaming=True)
        routing.response_started(200, Headers, event_stream=True)
        for pause in pauses:
            self.clock.advance(pause)
            routing.response_piece(b"data: {}\n\n", last=False, now=self.clock.now)
        end = f'data: {{"usage":{{"prompt_tokens":4,"completion_tokens":{tokens}}}}}\n\n'.encode()
        routing.response_piece(end, last=True, now=self.clock.now)
        routing.complete(Cause.NATURAL)
        return routing

    def value(self, name: str, /, **labels: str) -> float | None:
        """The one sample with these labels, None where there is none; `model` stands for both labels of the model."""
        if "model" in labels:
            model = labels.pop("model")
            labels |= {"model_name": model, "target_model_name": model}
            labels = {"fairness_id": "f", "priority": "0", **labels}
        return self.metrics.registry.get_sample_value(f"llm_d_epp_{name}", labels)

    def label_values(self, name: str, label: str) -> set[str]:
        families = self.metrics.registry.collect()
        return {s.labels[label] for family in families for s in family.samples if s.name == f"llm_d_epp_{name}"}
