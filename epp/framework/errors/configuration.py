# SPDX-License-Identifier: Apache-2.0
"""A configuration that cannot be used."""


class ConfigurationError(Exception):
    """The configuration cannot be used; the message names the thing, the place and the remedy."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
