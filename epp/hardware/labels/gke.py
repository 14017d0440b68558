# SPDX-License-Identifier: Apache-2.0
"""Labels of Google Kubernetes Engine: GPUs, their sharing, and TPUs."""

import math
import re
from collections.abc import Mapping

from epp.framework.accelerators.tag import AcceleratorKind, Partition, Sharing
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.labels.reading import MOST_DEVICES, LabelReader, Reading
from epp.hardware.mig import UNKNOWN_SLICE, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.mig.layouts import more_that_fit
from epp.hardware.mig.possible import profile_fault

_PREFIX = "cloud.google.com/gke-"
_SHARINGS = {"time-sharing": Sharing.TIME_SLICING, "mps": Sharing.MPS}
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}")
_FLAT, _FLAT_HOST_CHIPS, _HOST_CHIPS = 2, 8, 4


def read_gke_gpu(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts on the GPUs of the node; None without such labels.

    No label has the memory: that of a slice comes from its profile, that of a whole GPU from the catalogue.
    """
    reader = LabelReader(labels)
    product = reader.text(f"{_PREFIX}accelerator")
    if not product:
        return None
    count = reader.number(f"{_PREFIX}accelerator-count")
    size = reader.text(f"{_PREFIX}gpu-partition-size")
    fault = profile_fault(size, product, catalogue=catalogue) if size else ""
    profile = parse_mig_profile(size) if size and not fault else None
    if fault:
        reader.warnings.append(f"label {_PREFIX}gpu-partition-size: the profile {fault}: ignored")
    sharers = max(reader.number(f"{_PREFIX}max-shared-clients-per-gpu") or 1, 1)
    sharing = _SHARINGS.get(reader.text(f"{_PREFIX}gpu-sharing-strategy").lower())
    if sharing is None and sharers > 1:
        sharing = Sharing.TIME_SLICING
    mig: dict[str, int] = {}
    partition = memory = None
    if profile:
        gpu = mig_gpu(product, catalogue=catalogue)
        partition = partition_of(profile, gpu, sharers=sharers)
        memory = profile.memory_bytes // sharers
        slices = more_that_fit(gpu).get(profile.instance_name) if gpu else None
        count = count * slices if count and slices else None
        mig = {profile.name: count} if count else {}
    elif fault:
        partition = UNKNOWN_SLICE
    elif sharing:
        partition = Partition(kind=sharing, sharers=sharers, compute_fraction=1 / sharers, memory_fraction=1 / sharers)
    facts = Facts(
        source="labels",
        rank=Rank.LABELS,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        product=product,
        memory_bytes=memory,
        features=frozenset({"cuda"}),
        partition=partition,
    )
    return Reading(facts=facts, lookup=product, count=count, mig=mig, warnings=tuple(reader.warnings))


def read_gke_tpu(labels: Mapping[str, str], _: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts on the TPU slice of the node; None without such labels.

    The product of the topology is the number of chips in the slice; the accelerator count is that of this host. Without
    the latter, a slice of up to 8 chips (4 with three dimensions) is assumed to be on one host, and a larger one on
    hosts with 4 chips each.
    """
    reader = LabelReader(labels)
    product = reader.text(f"{_PREFIX}tpu-accelerator")
    if not product:
        return None
    topology = reader.text(f"{_PREFIX}tpu-topology").lower()
    chips = None
    count = reader.number(f"{_PREFIX}accelerator-count")
    dimensions = [int(side) for side in topology.split("x")] if _TOPOLOGY.fullmatch(topology) else []
    if math.prod(dimensions) > MOST_DEVICES:
        reader.warnings.append(f"label {_PREFIX}tpu-topology: {topology!r} is more than {MOST_DEVICES} chips: ignored")
    elif dimensions:
        chips = math.prod(dimensions)
        one_host = _FLAT_HOST_CHIPS if len(dimensions) == _FLAT else _HOST_CHIPS
        count = count or (chips if chips <= one_host else _HOST_CHIPS)
    elif topology:
        reader.warnings.append(f"label {_PREFIX}tpu-topology: {topology!r} is not of the form 2x4 or 2x2x4: ignored")
    facts = Facts(
        source="labels",
        rank=Rank.LABELS,
        kind=AcceleratorKind.TPU,
        vendor="google",
        product=product,
        features=frozenset({"xla"}),
    )
    return Reading(facts=facts, lookup=product, count=count, slice_chips=chips, warnings=tuple(reader.warnings))
