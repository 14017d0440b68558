"""How busy the GPUs behind an endpoint are, by the DCGM exporter beside it."""

import math
import re
from collections.abc import Mapping

from epp.collectors.exposition import Selector
from epp.collectors.http_source import HttpSource, HttpSourceParameters
from epp.collectors.metrics_source import PROMETHEUS_TEXT
from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import GPU_UTILIZATION

# The exporter leaves out the first where a GPU is cut into MIG instances; the second it can be told to export.
_SERIES = ((Selector("DCGM_FI_DEV_GPU_UTIL"), 100.0), (Selector("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 1.0))
_POD = ("exported_pod", "pod")
_NAMESPACE = ("exported_namespace", "namespace")
_RANK = re.compile(r"-rank-\d+$")


class DcgmSourceParameters(HttpSourceParameters, frozen=True):
    """Where the exporter listens."""

    path: str = "/metrics"
    """The page's path."""
    port: int | None = 9400
    """The exporter's port, at the endpoint's address."""
    interval: str = "1s"
    """Time between two pages of one endpoint; a GPU does not measure its utilization more often."""
    use_node_address: bool = False
    """Ask at the address of the node that the endpoint runs on; not supported yet."""

    def __post_init__(self) -> None:
        """Check every value; raises ValueError."""
        super().__post_init__()
        if self.use_node_address:
            raise ValueError(
                "useNodeAddress is known, not supported yet: the picker does not know the nodes of endpoints; "
                "run the exporter beside the model server, or leave it out"
            )


class DcgmDataSource(HttpSource[DcgmSourceParameters]):
    """Fetches the page of a DCGM exporter at the endpoint's address; its troubles are not the endpoint's."""

    plugin_type = "dcgm-data-source"
    accept = PROMETHEUS_TEXT


class DcgmExtractor(Extractor):
    """Reads the utilization of the busiest GPU of an endpoint: DCGM_FI_DEV_GPU_UTIL, 0..1.

    A GPU with a pod label counts for the endpoint of that name and namespace only, one without for every endpoint;
    where none is left the utilization is unknown. The names `<pod>-rank-<number>` are all of one pod. On GPUs cut into
    MIG instances, for which there is no such series, DCGM_FI_PROF_GR_ENGINE_ACTIVE counts, if the exporter has it.
    """

    plugin_type = "dcgm-extractor"
    writes = (GPU_UTILIZATION,)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return the utilization; raises PageError for a page that has none of anybody."""
        silent = True
        for selector, full in _SERIES:
            series = selector.read(page)
            silent = silent and not series
            shares = [one.value / full for one in series if _is_of(endpoint, one.labels)]
            possible = [share for share in shares if 0.0 <= share <= 1.0]  # what is not measured is written as 2 ** 63
            if possible:
                return Report({GPU_UTILIZATION: max(possible)})
        if silent:
            names = " nor ".join(selector.name for selector, _ in _SERIES)
            raise PageError(
                f"the page beside endpoint {endpoint.id} has neither {names}: is it a DCGM exporter's, "
                f"and are these among its counters?"
            )
        return Report({GPU_UTILIZATION: math.nan})


def _is_of(endpoint: Endpoint, labels: Mapping[str, str]) -> bool:
    """Whether a series speaks of the endpoint; one of nobody speaks of all.

    Where a Prometheus stands between, it has renamed the exporter's own labels, and `pod` is the exporter.
    """
    pod = _first(labels, _POD)
    namespace = _first(labels, _NAMESPACE)
    return pod in {"", endpoint.name, _RANK.sub("", endpoint.name)} and namespace in {"", endpoint.namespace}


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
