"""Kubernetes quantities: `500`, `10Gi`, `1.5G`, `2k`."""

import re
from fractions import Fraction

_UNITS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(10 ** (3 * power)) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Fraction(2 ** (10 * power)) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE](\d{1,2})|(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)")


def parse_quantity(text: str) -> int:
    """Return the number, rounded up to a whole one; raises ValueError for what is no quantity or is negative."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write 0 or more, with k, M, G, T, Ki, Mi, Gi or Ti if need be")
    number, exponent, unit = match.groups()
    exact = Fraction(number.rstrip(".")) * 10 ** int(exponent or 0) * _UNITS[unit or ""]
    return -int(-exact // 1)
