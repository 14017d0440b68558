# SPDX-License-Identifier: Apache-2.0
"""Accelerator class that served a session or tenant before, and the candidates of this class."""

from epp.framework.accelerators.arrays import tag_mask
from epp.framework.accelerators.tag import AcceleratorTag, names_of
from epp.framework.arrays import Mask, all_true, any_true
from epp.framework.candidates import Candidates
from epp.framework.request import DataKey, Request

SERVED_CLASS: DataKey[str] = DataKey("served-class", "served-class-producer")
"""Class that served the session, or the tenant, of the request last; absent if unknown."""


def class_of(tag: AcceleratorTag) -> str:
    """Return the primary class in lower case, or the model, with the slice if any; empty for unknown hardware."""
    name = next(iter(names_of(tag)), "")
    return f"{name} {tag.partition.profile}".strip() if name else ""


def of_served_class(request: Request, candidates: Candidates) -> Mask | None:
    """Return which candidates have the class that served the request's session; None if all of them have, or none."""
    served = request.get(SERVED_CLASS)
    if not served:
        return None
    same = tag_mask(candidates, _is, served)
    return None if all_true(same) or not any_true(same) else same


def _is(tag: AcceleratorTag, name: str) -> bool:
    return class_of(tag) == name
