# SPDX-License-Identifier: Apache-2.0
"""Detection of failing endpoints, which requests then avoid for a while."""

from epp.routing.outliers.outlier_detector import Ejected, OutlierDetector, OutlierObserver
from epp.routing.outliers.record import Ask, Failure, Told, Verdict, failure_of
from epp.routing.outliers.shared_failures import SharedFailures

__all__ = [
    "Ask",
    "Ejected",
    "Failure",
    "OutlierDetector",
    "OutlierObserver",
    "SharedFailures",
    "Told",
    "Verdict",
    "failure_of",
]
