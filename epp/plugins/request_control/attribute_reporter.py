# SPDX-License-Identifier: Apache-2.0
"""Reports a value computed from the usage of a response to the gateway, such as its cost."""

from epp.framework import Metadata, Name, Parameters, Request, Response, ResponseReporter
from epp.framework.headers import DESTINATION_NAMESPACE
from epp.plugins.request_control.cel import UsageExpression


class AttributeKey(Parameters, frozen=True):
    """Place of the value in the dynamic metadata."""

    name: Name
    """Key within the namespace."""
    namespace: Name = DESTINATION_NAMESPACE
    """Namespace of the dynamic metadata."""


class ReportedAttribute(Parameters, frozen=True):
    """A value and its place."""

    key: AttributeKey
    """Place of the value."""
    expression: str
    """CEL expression over `usage` for the value: a string, a number or a bool."""
    condition: str = ""
    """CEL expression over `usage` that is true if there is a value; empty for always."""


class AttributeReporterParameters(Parameters, frozen=True):
    """The value to report."""

    attributes: tuple[ReportedAttribute, ...]
    """Exactly one entry; for several values, declare several plugins."""

    def __post_init__(self) -> None:
        """Refuse none and several."""
        if len(self.attributes) != 1:
            raise ValueError(f"attributes has {len(self.attributes)} entries; it must have exactly one")


class AttributeReporter(ResponseReporter[AttributeReporterParameters]):
    """Puts the value of `expression` into the dynamic metadata of a response that reports its usage.

    `usage` has `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details.cached_tokens`,
    regardless of their names in the model server's API. They are doubles (write `2.0 * usage.completion_tokens`), or
    integers if the expression fails with doubles (`usage.prompt_tokens / 2`). If the expression fails on a response,
    nothing is reported for it.
    """

    plugin_type = "request-attribute-reporter"

    def setup(self) -> None:
        attribute = self.parameters.attributes[0]
        self._key = attribute.key
        self.namespaces = (attribute.key.namespace,)
        self._expression = UsageExpression(attribute.expression, place="attributes[0].expression")
        condition = attribute.condition or "true"
        self._condition = UsageExpression(condition, place="attributes[0].condition", gives=(bool,))

    def report(self, request: Request, response: Response) -> Metadata:  # noqa: ARG002
        usage = response.usage
        if usage is None or not self._condition.value(usage):
            return {}
        return {self._key.namespace: {self._key.name: self._expression.value(usage)}}
