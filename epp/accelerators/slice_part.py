"""Several slices of one endpoint as one partition: what each of them is on average, if they differ."""

from collections.abc import Sequence

from epp.framework.accelerators import Partition


def joined(parts: Sequence[Partition]) -> Partition:
    """Return the one partition that all are; of different ones the average, without a profile.

    So count x share is right in both cases, and nobody takes the endpoint for one that has only the first.
    """
    first = parts[0]
    alike = {(part.kind, part.profile) for part in parts}
    if len(parts) == 1:
        return first
    same_parent = len({part.parent_id for part in parts}) == 1
    return Partition(
        kind=first.kind,
        profile=first.profile if len(alike) == 1 else "",
        compute_slices=min(part.compute_slices for part in parts),
        memory_slots=min(part.memory_slots for part in parts),
        compute_fraction=sum(part.compute_fraction for part in parts) / len(parts),
        memory_fraction=sum(part.memory_fraction for part in parts) / len(parts),
        parent_id=first.parent_id if same_parent else "",
        media_extensions=any(part.media_extensions for part in parts),
        sharers=max(part.sharers for part in parts),
    )
