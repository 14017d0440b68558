# SPDX-License-Identifier: Apache-2.0
"""Stages of serving: the endpoints of each by their role, and how full each stage is."""

from typing import Any, NamedTuple

from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.flow_control import SaturationDetector

ROLE_LABEL = "llm-d.ai/role"
ENCODE_ROLES = ("encode", "encode-prefill", "encode-prefill-decode")
PREFILL_ROLES = ("prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")
DECODE_ROLES = ("decode", "prefill-decode", "both", "encode-prefill-decode")


class Saturation(NamedTuple):
    """How full endpoints are together: from 1 on, they are full."""

    effective: float
    """The larger one of the stages; that of all endpoints where none is of a stage."""
    prefill: float | None = None
    """None where no endpoint is of this stage."""
    decode: float | None = None
    """The same; an endpoint without a role decodes."""


def saturation_of(detector: SaturationDetector[Any], candidates: Candidates) -> Saturation:
    """Return how full the candidates are, by stage: an endpoint of both stages counts for each."""
    endpoints = candidates.snapshot.endpoints
    if not endpoints.derive(_have_roles):
        full = detector.saturation(candidates)
        return Saturation(full, decode=full if len(candidates) else None)
    prefill = _saturation(detector, candidates, candidates.where_label(ROLE_LABEL, PREFILL_ROLES))
    decode = _saturation(detector, candidates, endpoints.derive_mask(_decodes)[candidates.slots])
    stages = [each for each in (prefill, decode) if each is not None]
    return Saturation(max(stages) if stages else detector.saturation(candidates), prefill, decode)


def _saturation(detector: SaturationDetector[Any], candidates: Candidates, stage: Mask) -> float | None:
    return detector.saturation(candidates.keep(stage)) if stage.any() else None


def _have_roles(endpoints: tuple[Endpoint | None, ...]) -> bool:
    return any(each is not None and ROLE_LABEL in each.labels for each in endpoints)


def _decodes(endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.labels.get(ROLE_LABEL, DECODE_ROLES[0]) in DECODE_ROLES
