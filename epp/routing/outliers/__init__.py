# SPDX-License-Identifier: Apache-2.0
"""Memory of endpoints that fail: which ones requests avoid for a while."""

from epp.routing.outliers.outlier_detector import Ejected, OutlierDetector, OutlierObserver
from epp.routing.outliers.record import Ask, Failure, OutlierSettings, Told, Verdict, failure_of

__all__ = [
    "Ask",
    "Ejected",
    "Failure",
    "OutlierDetector",
    "OutlierObserver",
    "OutlierSettings",
    "Told",
    "Verdict",
    "failure_of",
]
