# SPDX-License-Identifier: Apache-2.0
"""A source of load from outside whose first answers wait: `tests.support.held_pages:HeldPages` in a configuration."""

import asyncio

from epp.framework import RUNNING, Endpoint
from epp.framework.datalayer import DataSource, Extractor, Report

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: "tests.support.held_pages:HeldPages", name: pages}
- {type: "tests.support.held_pages:Counts", name: counts}
- {type: queue-scorer}
dataLayer:
  injectDefaults: false
  sources: [{pluginRef: pages, extractors: [{pluginRef: counts}]}]
"""


class HeldPages(DataSource):
    """Answers with the number of running requests once `told` is set."""

    plugin_type = "held-pages"
    port = None
    interval_seconds = None

    def setup(self) -> None:
        self.told = asyncio.Event()

    async def fetch(self, endpoint: Endpoint) -> bytes:
        await self.told.wait()
        return b"3"

    async def close(self) -> None:
        pass


class Counts(Extractor):
    """Reads it."""

    plugin_type = "counts"
    writes = (RUNNING,)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        return Report({RUNNING: float(page)})
