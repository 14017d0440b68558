# SPDX-License-Identifier: Apache-2.0
"""Memory of endpoints that fail: which ones requests avoid for a while."""

from epp.outliers.failures import Ask, Failure, Told, Verdict, failure_of
from epp.outliers.outlier_detector import Ejected, OutlierDetector, OutlierObserver
from epp.outliers.record import OutlierSettings

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
