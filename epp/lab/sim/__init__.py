# SPDX-License-Identifier: Apache-2.0
"""A simulated vLLM: the API, the metrics and the timing of a model server, without a model.

In addition to the API of vLLM, every answer has the header `x-sim-server: <name>`, and three paths serve tests:

    POST /sim/occupy    synthetic load (an `Occupation` as JSON), replaces the previous one; returns the new load.
                        400 if it is malformed, 409 if the machine has no room for it.
    POST /sim/release   ends the synthetic load; returns the new load.
    GET /sim/requests   the last 1,000 completion requests, as a list of `RequestRecord`, oldest first.
"""
