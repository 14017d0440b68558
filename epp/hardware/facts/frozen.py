# SPDX-License-Identifier: Apache-2.0
"""Whether the model of an endpoint is frozen, from the labels of the endpoint and the annotations of its pod."""

from collections.abc import Iterator
from typing import NamedTuple

from epp.framework.accelerators.tag import FROZEN, FROZEN_TO
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.surroundings import Surroundings

OWN_DOMAIN = "llm-d.ai"


class Frozen(NamedTuple):
    """Facts on where a model is frozen to, and warnings of other values."""

    facts: tuple[Facts, ...]
    warnings: tuple[str, ...]


def frozen_facts(around: Surroundings, tensor_fusion_domain: str) -> Frozen:
    """Return the first valid value of a label or annotation."""
    facts, warnings = [], []
    for key, value in _found(around, tensor_fusion_domain):
        if value in FROZEN_TO:
            facts.append(Facts(source=key, rank=Rank.ALLOCATOR, attributes={FROZEN: value}))
        else:
            warnings.append(f"{key} is {value[:60]!r}: write {' or '.join(FROZEN_TO)}, or remove it; it is ignored")
    return Frozen(tuple(facts[:1]), tuple(warnings))


def _found(around: Surroundings, tensor_fusion_domain: str) -> Iterator[tuple[str, str]]:
    pod = around.pod
    sources = [around.endpoint.labels, *([] if pod is None else [pod.metadata.annotations, pod.metadata.labels])]
    for domain in (OWN_DOMAIN, tensor_fusion_domain):
        key = f"{domain}/frozen"
        values = dict.fromkeys(source[key] for source in sources if key in source)
        yield from ((key, value) for value in values)
