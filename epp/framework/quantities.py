# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities: `500`, `10Gi`, `1.5G`, `2k`, `500m`, `1e3`."""

import math
import re
from fractions import Fraction

_UNITS = {
    "": Fraction(1),
    **{unit: Fraction(1, 10 ** (3 * power)) for power, unit in enumerate(("m", "u", "n"), start=1)},
    **{unit: Fraction(10 ** (3 * power)) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Fraction(2 ** (10 * power)) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")

_SIZE = re.compile(r"([0-9][0-9.]*(?:[eE]\+?[0-9]{1,2})?)([kKMGTPE]B|[kMGTPE]|[KMGTPE]iB?|B)?")


def exact_quantity(text: str | float) -> Fraction:
    """Return the number a quantity stands for, exactly; a number, as YAML may hold one, stands for itself.

    Signs, `.5`, `5.`, binary and decimal suffixes down to `n`, and exponents with a sign. Raises ValueError for
    anything else.
    """
    written = text if isinstance(text, str) else repr(text)
    match = None if isinstance(text, bool) else _QUANTITY.fullmatch(written)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write a number, with k, M, G, T, Ki, Mi, Gi or Ti if need be")
    sign, number, exponent, unit = match.groups()
    exact = Fraction(number.rstrip(".")) * Fraction(10) ** int(exponent or 0) * _UNITS[unit or ""]
    return -exact if sign == "-" else exact


def parse_quantity(text: str) -> int:
    """Return the number, rounded up to a whole one; raises ValueError for what is no quantity or is negative."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[1] == "-":
        raise ValueError(f"{text!r} is not a quantity: write 0 or more, with k, M, G, T, Ki, Mi, Gi or Ti if need be")
    return math.ceil(exact_quantity(text))


def parse_size(text: str) -> int:
    """Return bytes, at least one: a quantity that may end in `B`, as in `10MiB`; ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    try:
        number, unit = match.groups(default="") if match else ("", "")
        if size := parse_quantity(number + ("k" if unit == "KB" else unit.removesuffix("B"))):
            return size
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a size: write bytes, or a number with k, M, G, Ki, Mi or Gi, such as 32Mi")
