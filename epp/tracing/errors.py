# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the settings of tracing."""


class TracingError(Exception):
    """Requests cannot be traced; the text says why, and the remedy."""
