"""A simulated vLLM: the API, the metrics and the timing of a model server, without a model.

Beyond the API of vLLM every answer carries `x-sim-server: <name>`, and three paths serve tests:
`POST /sim/occupy` makes the server look loaded, `POST /sim/release` ends that, and `GET /sim/requests` lists
the last 1,000 completion requests with the digests of their bodies and the headers that arrived.
"""

from epp.sim.machine import Machine
from epp.sim.profile import PRESETS, SimProfile
from epp.sim.records import Emission, Occupation, OccupationError, SimRequest
from epp.sim.request_log import RequestRecord
from epp.sim.server import RunningSim, running, serve

__all__ = [
    "PRESETS",
    "Emission",
    "Machine",
    "Occupation",
    "OccupationError",
    "RequestRecord",
    "RunningSim",
    "SimProfile",
    "SimRequest",
    "running",
    "serve",
]
