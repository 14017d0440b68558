# SPDX-License-Identifier: Apache-2.0
"""Routing of one request, from its headers and body to the end of its response."""

from epp.framework.candidates import Subset
from epp.routing.director.decision import Decision, top_values
from epp.routing.director.director import Director
from epp.routing.director.incoming_request import Seeds
from epp.routing.director.observers import DirectorObserver, Observers, Refusal
from epp.routing.director.pipeline import ParserTable, Pipeline, PoolPolicies, ResponseNeeds, Rewrite
from epp.routing.director.router import Runtime
from epp.routing.director.routing import Cause, Routing
from epp.routing.director.simulation import Simulated, Simulation
from epp.routing.director.waiting import PendingRequest

__all__ = [
    "Cause",
    "Decision",
    "Director",
    "DirectorObserver",
    "Observers",
    "ParserTable",
    "PendingRequest",
    "Pipeline",
    "PoolPolicies",
    "Refusal",
    "ResponseNeeds",
    "Rewrite",
    "Routing",
    "Runtime",
    "Seeds",
    "Simulated",
    "Simulation",
    "Subset",
    "top_values",
]
