# SPDX-License-Identifier: Apache-2.0
"""A simulated vLLM: the API, the metrics and the timing of a model server, without a model.

In addition to the API of vLLM, every answer has the header `x-sim-server: <name>`, and three paths serve tests:

    POST /sim/occupy    synthetic load, an `Occupation` as JSON, in place of the one before; answers with the new load.
                        400 for a malformed one, 409 when the machine has no room for it.
    POST /sim/release   the end of the synthetic load; answers with the new load.
    GET /sim/requests   the last 1,000 completion requests, as a list of `RequestRecord`, oldest first.
"""

from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import PRESETS, FitError, ProfileSource, SimProfile, dump_server_profile, load_server_profile
from epp.lab.sim.server import RunningSim, running
from epp.lab.sim.work import Emission, Occupation, OccupationError, SimRequest

__all__ = [
    "PRESETS",
    "Emission",
    "FitError",
    "Machine",
    "Occupation",
    "OccupationError",
    "ProfileSource",
    "RunningSim",
    "SimProfile",
    "SimRequest",
    "dump_server_profile",
    "load_server_profile",
    "running",
]
