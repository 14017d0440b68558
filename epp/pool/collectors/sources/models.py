# SPDX-License-Identifier: Apache-2.0
"""Models that an endpoint serves, from its own list."""

import msgspec
import numpy as np

from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint
from epp.framework.limits import AbsolutePath
from epp.framework.snapshot import MODELS
from epp.pool.collectors.sources.http import HttpSource, HttpSourceParameters

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
        """Return the names; raises PageError for any other page."""
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
