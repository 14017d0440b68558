# SPDX-License-Identifier: Apache-2.0
"""Memory of endpoints that fail: which ones requests avoid for a while."""

from epp.outliers.failures import Failure, failure_of
from epp.outliers.memory import Ejected, OutlierMemory, OutlierObserver
from epp.outliers.settings import OutlierSettings
from epp.outliers.verdict import Ask, Told, Verdict

__all__ = [
    "Ask",
    "Ejected",
    "Failure",
    "OutlierMemory",
    "OutlierObserver",
    "OutlierSettings",
    "Told",
    "Verdict",
    "failure_of",
]
