# SPDX-License-Identifier: Apache-2.0
"""Label selectors as Kubernetes writes them in one line, such as `app=vllm,tier in (a, b),!canary`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_KEY = rf"(?:{_DOMAIN}/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_BETWEEN_REQUIREMENTS = re.compile(r",(?![^(]*\))")
_EXISTS = re.compile(rf"(?P<operator>!?)\s*(?P<key>{_KEY})")
_COMPARISON = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<values>{_VALUE})")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\)")
_ORDER = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>[<>])\s*(?P<values>-?\d{{1,18}})")
_FORMS = (_EXISTS, _COMPARISON, _SET, _ORDER)
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether these labels meet it."""
        return _TESTS[self.operator](labels.get(self.key), self.values)


def _compared(label: str | None, bound: str) -> int:
    """Return -1, 0 or 1 as the label is less, no number, or greater."""
    if label is None or not _WHOLE_NUMBER.fullmatch(label):
        return 0
    return (int(label) > int(bound)) - (int(label) < int(bound))


_TESTS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = MappingProxyType(
    {
        "": lambda label, _: label is not None,
        "!": lambda label, _: label is None,
        "=": lambda label, values: label in values,
        "==": lambda label, values: label in values,
        "in": lambda label, values: label in values,
        "!=": lambda label, values: label not in values,
        "notin": lambda label, values: label not in values,
        ">": lambda label, values: _compared(label, values[0]) > 0,
        "<": lambda label, values: _compared(label, values[0]) < 0,
    }
)
"""Whether a label, None for a missing one, meets an operator with these values."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Label requirements; all must match. Empty selects everything."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """Read a selector; raises ValueError for malformed text."""
        if not text.strip():
            return cls()
        return cls(tuple(_requirement(part.strip(), text) for part in _BETWEEN_REQUIREMENTS.split(text)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether these labels meet all requirements."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def _requirement(part: str, text: str) -> Requirement:
    found = next(filter(None, (form.fullmatch(part) for form in _FORMS)), None)
    if found is None:
        raise ValueError(
            f"{text!r} is not a label selector, because of {part!r}: write key=value, key!=value, key in (a, b), "
            "key notin (a, b), key or !key, with commas in between"
        )
    groups = found.groupdict()
    values = groups.get("values")
    return Requirement(
        groups["key"], groups["operator"], () if values is None else tuple(map(str.strip, values.split(",")))
    )
