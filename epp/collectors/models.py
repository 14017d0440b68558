"""Which models an endpoint serves, by its own list of them."""

import msgspec

from epp.collectors.http_source import HttpSource, HttpSourceParameters
from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import MODELS


class ModelsSourceParameters(HttpSourceParameters, frozen=True):
    """Where the list is, and how to get it."""

    path: str = "/v1/models"
    """The list's path."""
    interval: str = "10s"
    """Time between two lists of one endpoint: how long an adapter that was loaded may go unseen."""


class ModelsDataSource(HttpSource[ModelsSourceParameters]):
    """Fetches an endpoint's list of models: at most 8 MiB, no redirects, no cookies, no compression."""

    plugin_type = "models-data-source"
    accept = "application/json"


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


class ModelsDataExtractor(Extractor):
    """Reads the names out of a list of models in OpenAI's form, those of adapters among them."""

    plugin_type = "models-data-extractor"
    writes = (MODELS,)

    _decoder = msgspec.json.Decoder(_ModelList)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return the names; raises PageError for what is no such list."""
        try:
            models = self._decoder.decode(page)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PageError(
                f"endpoint {endpoint.id}: the page is no list of models, which looks like "
                f'{{"data": [{{"id": "a-model"}}]}}: {error}; check the path of the source'
            ) from error
        return Report(attributes={MODELS: frozenset(model.id for model in models.data)})
