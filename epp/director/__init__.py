"""One request: from headers and body to its destination, and on to the end of its response."""

from epp.director.director import Director, DirectorObserver, Refusal
from epp.director.held import Held
from epp.director.pipeline import ParserTable, Pipeline
from epp.director.routing import Cause, Routing
from epp.director.seeds import Seeds
from epp.framework.addresses import Subset

__all__ = [
    "Cause",
    "Director",
    "DirectorObserver",
    "Held",
    "ParserTable",
    "Pipeline",
    "Refusal",
    "Routing",
    "Seeds",
    "Subset",
]
