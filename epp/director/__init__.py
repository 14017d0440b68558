# SPDX-License-Identifier: Apache-2.0
"""One request: from headers and body to its destination, and on to the end of its response."""

from epp.director.decision import Decision, top_values
from epp.director.director import Director
from epp.director.observers import DirectorObserver, Observers, Refusal
from epp.director.pending_request import PendingRequest
from epp.director.pipeline import ParserTable, Pipeline, ResponseNeeds
from epp.director.policies import PoolPolicies, Rewrite
from epp.director.reading import Gathered, in_turns
from epp.director.routing import Cause, Routing
from epp.director.seeds import Seeds
from epp.director.simulation import Simulated, Simulation
from epp.framework.addresses import Subset

__all__ = [
    "Cause",
    "Decision",
    "Director",
    "DirectorObserver",
    "Gathered",
    "Observers",
    "ParserTable",
    "PendingRequest",
    "Pipeline",
    "PoolPolicies",
    "Refusal",
    "ResponseNeeds",
    "Rewrite",
    "Routing",
    "Seeds",
    "Simulated",
    "Simulation",
    "Subset",
    "in_turns",
    "top_values",
]
