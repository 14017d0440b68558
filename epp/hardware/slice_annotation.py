# SPDX-License-Identifier: Apache-2.0
"""Slices in the annotation that InstaSlice's device plugin leaves on a pod."""

import msgspec

from epp.hardware.mig.slices import SliceClaim
from epp.kube.objects.base import convert
from epp.kube.objects.core import Pod
from epp.kube.objects.instaslice import ClaimSpec

ANNOTATION = "mig.das.com/allocation"


def annotated_claims(pod: Pod, node: str) -> tuple[SliceClaim, ...]:
    """Return the slices in the annotation; `node` is that of the pod. Raises ValueError if it cannot be read."""
    text = pod.metadata.annotations.get(ANNOTATION, "")
    if not text:
        return ()
    try:
        entries = msgspec.json.decode(text, type=list[dict[str, object]])
    except msgspec.DecodeError:
        raise ValueError("it is no list of claims: write JSON as the device plugin does") from None
    specs = [convert(entry.get("spec", entry), ClaimSpec, f"[{index}]") for index, entry in enumerate(entries)]
    return tuple(
        SliceClaim(
            source=f"annotation {ANNOTATION}",
            pod=spec.pod_ref,
            profile=spec.profile,
            gpu_uuid=spec.gpu_uuid,
            node=spec.nodename or node,
            start=None if spec.mig_placement is None else spec.mig_placement.start,
            size=None if spec.mig_placement is None else spec.mig_placement.size,
            profile_field=f"[{index}].profile",
            placement_field=f"[{index}].migPlacement",
            state="inUse",
        )
        for index, spec in enumerate(specs)
    )
