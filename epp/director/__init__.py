"""One request, from headers and body to the endpoint picked, and what becomes of it."""

from epp.director.director import Director, DirectorObserver
from epp.director.pipeline import ParserTable, Pipeline
from epp.director.routing import Cause, Routing
from epp.director.subset import Subset

__all__ = ["Cause", "Director", "DirectorObserver", "ParserTable", "Pipeline", "Routing", "Subset"]
