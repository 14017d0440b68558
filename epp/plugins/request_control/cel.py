"""Expressions in CEL, the Common Expression Language, over the usage that a response reports."""

from collections.abc import Mapping
from importlib import import_module
from math import isfinite
from typing import Any, TypeAlias

from epp.framework import MetadataValue, Usage

Variables: TypeAlias = Mapping[str, object]

_SAMPLE = Usage(prompt_tokens=101, completion_tokens=13, cached_tokens=37)


class UsageExpression:
    """One expression, compiled once. Its variable `usage` has the names of OpenAI's usage object.

    Those are `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details.cached_tokens`. CEL
    converts no numbers by itself: they are doubles, as in JSON, and integers where that is the only way that the
    expression works.
    """

    def __init__(self, source: str, *, place: str, gives: tuple[type, ...] = (str, int, float, bool)) -> None:
        """Compile and try it; raises ValueError, naming the place and the expression, for one that cannot work."""
        try:
            cel = import_module("cel_expr_python.cel")
        except ImportError as error:
            raise ValueError(f"{place} needs the package cel-expr-python: pip install 'inference-epp[cel]'") from error
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
        """Return what it gives, numbers always finite; raises ValueError where it fails or gives something else."""
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
