# SPDX-License-Identifier: Apache-2.0
"""Reads the accelerator bounds and preferences in request headers."""

from collections.abc import Callable, Mapping
from typing import cast

from epp.framework import ConfigurationError, Headers
from epp.framework.accelerators.requirements import SelectionParameters
from epp.framework.accelerators.selection import ANY, Selection, combined
from epp.framework.headers import ACCELERATOR_PREFIX
from epp.framework.messages import hint_at, printable, quoted
from epp.framework.parameters import read_parameters

_MOST_CHARACTERS = 300
"""Of one problem, which may quote the value of a header."""


def _list(text: str) -> object:
    return [part.strip() for part in text.split(",")]


def _text(text: str) -> object:
    return text.strip()


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a number") from None


def _whole_number(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a whole number") from None


def _flag(text: str) -> object:
    if text.strip().lower() not in {"true", "false"}:
        raise ConfigurationError(f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "class": ("acceleratorClasses", _list),
    "exclude-class": ("excludedClasses", _list),
    "vendor": ("vendors", _list),
    "family": ("architectureFamilies", _list),
    "model": ("models", _list),
    "kind": ("kinds", _list),
    "resource": ("resources", _list),
    "features": ("requiredFeatures", _list),
    "min-memory": ("minMemory", _text),
    "max-memory": ("maxMemory", _text),
    "min-total-memory": ("minTotalMemory", _text),
    "min-compute-capability": ("minArchitectureVersion", _text),
    "max-cost-per-hour": ("maxCostPerHour", _number),
    "max-cost-per-million-tokens": ("maxCostPerMillionTokens", _number),
    "mig-profile": ("migProfiles", _list),
    "exclude-mig-profile": ("excludedMigProfiles", _list),
    "min-compute-slices": ("minComputeSlices", _whole_number),
    "whole-device": ("wholeDeviceOnly", _flag),
    "policy": ("policy", _text),
    "precisions": ("preferredPrecisions", _list),
    "preference": ("preferenceOrder", _list),
}
"""Header name without the prefix -> the parameter it sets, and the parser of its value."""

_HEADER_OF_FIELD: Mapping[str, str] = {
    "classes": "class",
    "families": "family",
    "vendors": "vendor",
    "kinds": "kind",
    "models": "model",
    "resources": "resource",
    "mig_profiles": "mig-profile",
}


def header_of(field: str) -> str:
    """Return the header that sets an allow list of Selection."""
    return ACCELERATOR_PREFIX + _HEADER_OF_FIELD[field]


def read_wishes(headers: Headers) -> tuple[Selection, tuple[str, ...]]:
    """Return the bounds and preferences in the headers, and errors in them; repeated headers are one list."""
    wish, problems = ANY, []
    for name in headers:
        if not name.startswith(ACCELERATOR_PREFIX):
            continue
        known = _FIELDS.get(name.removeprefix(ACCELERATOR_PREFIX))
        if known is None:
            problems.append(
                f"header {quoted(name)} is not known; {hint_at(name, [ACCELERATOR_PREFIX + one for one in _FIELDS])}"
            )
            continue
        field, read = known
        value = ",".join(text for other, text in headers.fields() if other == name)
        try:
            wish = combined(wish, _selection(field, read(value)))
        except ConfigurationError as error:
            problems.append(printable(f"header {name!r}: {_in_terms_of_headers(str(error), field)}", _MOST_CHARACTERS))
    return wish, tuple(problems)


def _in_terms_of_headers(problem: str, field: str) -> str:
    """Take the name of the parameter from a problem: the client has sent a header."""
    rest = problem.removeprefix(field)
    return problem if rest == problem else rest.removeprefix(": ") if rest.startswith(": ") else f"it{rest}"


def _selection(field: str, value: object) -> Selection:
    return cast("SelectionParameters", read_parameters(SelectionParameters, {field: value})).selection()
