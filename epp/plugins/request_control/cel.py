# SPDX-License-Identifier: Apache-2.0
"""CEL (Common Expression Language) expressions over the usage of a response."""

from collections.abc import Mapping
from importlib import import_module
from math import isfinite
from typing import Any, TypeAlias

from epp.framework import MetadataValue, Usage
from epp.framework.messages import install_command

Variables: TypeAlias = Mapping[str, object]

_SAMPLE = Usage(prompt_tokens=101, completion_tokens=13, cached_tokens=37)


class UsageExpression:
    """A compiled expression. Its variable `usage` has the fields of OpenAI's usage object.

    These are `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details.cached_tokens`. CEL does
    not convert numbers: they are doubles, as in JSON, or integers if the expression fails with doubles.
    """

    def __init__(self, source: str, *, place: str, gives: tuple[type, ...] = (str, int, float, bool)) -> None:
        """Compile and try it; raises ValueError with the place and the expression if it fails."""
        try:
            cel = import_module("cel_expr_python.cel")
        except ImportError as error:
            raise ValueError(f"{place} needs the package cel-expr-python: {install_command('cel')}") from error
        self._what = f"{place} {source!r}"
        self._gives = gives
        self._error_type = cel.Type.ERROR
        environment = cel.NewEnv(variables={"usage": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
        try:
            self._program = environment.compile(source)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]  # the lines below draw the expression
            raise ValueError(f"{self._what} is not a CEL expression over `usage`: {reason}") from error
        self.value(_SAMPLE)

    def value(self, usage: Usage) -> MetadataValue:
        """Return its value, numbers always finite; raises ValueError if it fails or has another type."""
        found = self._evaluate(_variables(usage, float))
        if found.type() == self._error_type:
            as_integers = self._evaluate(_variables(usage, int))
            if as_integers.type() == self._error_type:
                raise ValueError(f"{self._what} fails: {found.plain_value()}")
            found = as_integers
        value: MetadataValue = found.plain_value()
        if not isinstance(value, self._gives) or (isinstance(value, float) and not isfinite(value)):
            kinds = ", ".join(kind.__name__ for kind in self._gives)
            raise ValueError(f"{self._what} gives {value!r}; it must give one of: {kinds}")
        return value

    def _evaluate(self, variables: Variables) -> Any:
        return self._program.eval(data=variables)


def _variables(usage: Usage, number: type[int] | type[float]) -> Variables:
    return {
        "usage": {
            "prompt_tokens": number(usage.prompt_tokens),
            "completion_tokens": number(usage.completion_tokens),
            "total_tokens": number(usage.prompt_tokens + usage.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": number(usage.cached_tokens)},
        }
    }
