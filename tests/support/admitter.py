# SPDX-License-Identifier: Apache-2.0
"""An admitter that holds each request until the test releases it: `tests.support.admitter:Gate` in a configuration."""

import asyncio

from epp.framework import Admitter, Candidates, Request

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: "tests.support.admitter:Gate", name: gate}, {type: queue-scorer}]
dataLayer: {injectDefaults: false}
"""


class Gate(Admitter):
    """Holds each request until its future in `held` is settled, in the order in which they came."""

    plugin_type = "gate"

    def setup(self) -> None:
        self.held: list[asyncio.Future[None]] = []

    def admit(self, request: Request, candidates: Candidates) -> asyncio.Future[None] | None:
        if candidates.profile:  # a trial with made-up endpoints
            return None
        self.held.append(asyncio.get_running_loop().create_future())
        return self.held[-1]
