# SPDX-License-Identifier: Apache-2.0
"""A plugin from outside that holds up the event loop, as none must: `blocking:Blocking` in a configuration."""

import time

from epp.framework import Admitter, Candidates, Request

SECONDS = 0.5
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: "blocking:Blocking", name: blocking}, {type: queue-scorer}]
dataLayer: {injectDefaults: false}
"""


class Blocking(Admitter):
    """Admits each request after a computation, though not those of trials."""

    plugin_type = "blocking"

    def admit(self, request: Request, candidates: Candidates) -> None:
        if not candidates.profile:
            self.compute()

    def compute(self) -> None:
        until = time.thread_time() + SECONDS
        while time.thread_time() < until:
            sum(range(100))
