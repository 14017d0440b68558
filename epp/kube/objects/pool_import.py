# SPDX-License-Identifier: Apache-2.0
"""InferencePoolImport: the clusters that export a pool."""

from epp.kube.objects.base import Metadata, Object, Part, convert


class InferencePoolImport(Object, frozen=True, kw_only=True):
    """A pool of other clusters, as a controller describes it in this one."""

    clusters: tuple[str, ...] = ()
    """Clusters that export the pool, each once."""


class _Cluster(Part, frozen=True, kw_only=True):
    name: str


class _Controller(Part, frozen=True, kw_only=True):
    exporting_clusters: tuple[_Cluster, ...] = ()


class _Status(Part, frozen=True, kw_only=True):
    controllers: tuple[_Controller, ...] = ()
    clusters: tuple[_Cluster, ...] = ()
    """As the proposal had it before there were controllers."""


class _Import(Part, frozen=True, kw_only=True):
    metadata: Metadata
    status: _Status = _Status()


def read_pool_import(document: object) -> InferencePoolImport:
    """Return the object; raises ValueError."""
    raw = convert(document, _Import)
    found = [each for controller in raw.status.controllers for each in controller.exporting_clusters]
    names = dict.fromkeys(each.name for each in (*found, *raw.status.clusters) if each.name)
    return InferencePoolImport(metadata=raw.metadata, clusters=tuple(names))
