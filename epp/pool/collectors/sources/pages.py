# SPDX-License-Identifier: Apache-2.0
"""Further pages of an endpoint: GPU utilization from a DCGM exporter, and the list of models."""

import math
import re
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint, PagePlace
from epp.framework.limits import AbsolutePath, PortOrZero
from epp.framework.snapshot import GPU_UTILIZATION, MODELS
from epp.pool.collectors.exposition import PROMETHEUS_TEXT, Selector
from epp.pool.collectors.sources.http import HttpSource, HttpSourceParameters

# With MIG, the exporter omits the first; the second is optional in its configuration.
_SERIES = ((Selector("DCGM_FI_DEV_GPU_UTIL"), 100.0), (Selector("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 1.0))
_POD = ("exported_pod", "pod")
_NAMESPACE = ("exported_namespace", "namespace")
_RANK = re.compile(r"-rank-\d+$")


class DcgmSourceParameters(HttpSourceParameters, frozen=True):
    """URL of the exporter, polling interval and TLS."""

    path: AbsolutePath = "/metrics"
    """Path of the page."""
    port: PortOrZero = 9400
    """Port of the exporter; 0 for the endpoint's own."""
    interval: str = "1s"
    """Time between two polls of an endpoint; GPUs do not measure their utilization more often."""
    use_node_address: bool = False
    """Poll the address of the endpoint's node, where a DaemonSet runs the exporter, instead of the endpoint's. An
    endpoint whose node has no known address, such as one in a list of endpoints, is polled at its own."""


class DcgmDataSource(HttpSource[DcgmSourceParameters]):
    """Fetches the page of a DCGM exporter beside the endpoint; its failures do not affect the endpoint."""

    plugin_type = "dcgm-data-source"
    accept = PROMETHEUS_TEXT

    def place(self, endpoint: Endpoint) -> PagePlace:
        """Return the exporter at the node, or at the endpoint."""
        place = super().place(endpoint)
        return PagePlace(endpoint.node_address, place.port) if self._is_at_node(endpoint) else place

    def asks(self, endpoint: Endpoint) -> bool:
        """Whether the exporter has the address and port of the endpoint."""
        return super().asks(endpoint) and not self._is_at_node(endpoint)

    def _is_at_node(self, endpoint: Endpoint) -> bool:
        return self.parameters.use_node_address and bool(endpoint.node_address)


class DcgmExtractor(Extractor):
    """Reads the utilization of the busiest GPU of an endpoint: DCGM_FI_DEV_GPU_UTIL, 0..1.

    A GPU with a pod label counts for the endpoint with this name and namespace, one without for every endpoint; without
    any the utilization is unknown. Endpoints named `<pod>-rank-<number>` belong to one pod. With MIG, which has no such
    series, DCGM_FI_PROF_GR_ENGINE_ACTIVE counts if the exporter has it.
    """

    plugin_type = "dcgm-extractor"
    writes = (GPU_UTILIZATION,)

    @property
    def series(self) -> Collection[str]:
        return [selector.name for selector, _ in _SERIES]

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        silent = True
        for selector, full in _SERIES:
            series = selector.read(page)
            silent = silent and not series
            shares = [one.value / full for one in series if _is_of(endpoint, one.labels)]
            possible = [share for share in shares if 0.0 <= share <= 1.0]  # an unmeasured value is 2 ** 63
            if possible:
                return Report({GPU_UTILIZATION: max(possible)})
        if silent:
            names = " nor ".join(selector.name for selector, _ in _SERIES)
            raise PageError(
                f"the page for endpoint {endpoint.id} has neither {names}: check that it is that of a DCGM exporter, "
                f"and that these counters are enabled"
            )
        return Report({GPU_UTILIZATION: math.nan})


def _is_of(endpoint: Endpoint, labels: Mapping[str, str]) -> bool:
    """Return whether a series is of the endpoint; one without labels of pods is of all endpoints.

    In a page of Prometheus itself, the exporter's own labels have the prefix `exported_`, and `pod` is the exporter.
    """
    pod = _first(labels, _POD)
    namespace = _first(labels, _NAMESPACE)
    return pod in {"", endpoint.name, _RANK.sub("", endpoint.name)} and namespace in {"", endpoint.namespace}


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


MOST_BYTES = 2 * 1024 * 1024
_LONGEST_NAME = 256
MOST_OBJECTS = 10_000
"""The event loop is blocked while a list is read: 2 ms for so many objects."""


class ModelsSourceParameters(HttpSourceParameters, frozen=True):
    """URL of the list, polling interval and TLS."""

    path: AbsolutePath = "/v1/models"
    """Path of the list."""
    interval: str = "10s"
    """Time between two polls of an endpoint, and so the longest delay until a loaded adapter is known."""


class ModelsDataSource(HttpSource[ModelsSourceParameters]):
    """Fetches an endpoint's list of models: at most 2 MiB, no redirects, no cookies, no compression."""

    plugin_type = "models-data-source"
    accept = "application/json"
    most_bytes = MOST_BYTES


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


class ModelsDataExtractor(Extractor):
    """Reads the names of models and adapters from a list in the OpenAI format: of at most 2 MiB and 10,000 objects.

    Names of more than 256 characters are left out.
    """

    plugin_type = "models-data-extractor"
    writes = (MODELS,)

    _decoder = msgspec.json.Decoder(_ModelList)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        if len(page) > MOST_BYTES or np.count_nonzero(np.frombuffer(page, np.uint8) == ord("{")) > MOST_OBJECTS:
            raise PageError(
                f"endpoint {endpoint.id}: the list of models has more than {MOST_BYTES} bytes, or more than "
                f"{MOST_OBJECTS} objects; check the path of the source"
            )
        try:
            models = self._decoder.decode(page)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PageError(
                f"endpoint {endpoint.id}: the page is not a list of models such as "
                f'{{"data": [{{"id": "a-model"}}]}}: {error}; check the path of the source'
            ) from error
        return Report(attributes={MODELS: frozenset(one.id for one in models.data if len(one.id) <= _LONGEST_NAME)})
