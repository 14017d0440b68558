# SPDX-License-Identifier: Apache-2.0
"""Calibration: measure a model server through its API, and fit a `SimProfile` to the times.

`client.py` sends requests, `measure.py` decides which, `fit.py` computes the profile and its error.
"""

from epp.lab.calibration.client import HttpServer, ServerError
from epp.lab.calibration.fit import Answer, Batch, NotEnoughError, Probe, fit, fit_error, predict, spread
from epp.lab.calibration.measure import Facts, Measurements, Server, measure

__all__ = [
    "Answer",
    "Batch",
    "Facts",
    "HttpServer",
    "Measurements",
    "NotEnoughError",
    "Probe",
    "Server",
    "ServerError",
    "fit",
    "fit_error",
    "measure",
    "predict",
    "spread",
]
