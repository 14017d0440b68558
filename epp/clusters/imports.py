# SPDX-License-Identifier: Apache-2.0
"""Imported pools as decisions: an import chooses the clusters that export the pool, and the local one."""

from epp.clusters.decisions import Decided
from epp.clusters.hub import Hub
from epp.framework.clusters import POOL_IMPORT, PlacementStatus


def imported(hub: Hub, local: str) -> dict[str, Decided]:
    """Return what each InferencePoolImport chooses, by `InferencePoolImport/namespace/name`."""
    chosen = PlacementStatus(chosen=True)
    return {
        f"{POOL_IMPORT}/{name}": Decided(clusters=dict.fromkeys((local, *each.clusters), chosen))
        for name, each in hub.imports.items()
    }
