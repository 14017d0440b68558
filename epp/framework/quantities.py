# SPDX-License-Identifier: Apache-2.0
"""Quantities, durations, memory sizes and names of MIG profiles in files and labels."""

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
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
GIB = 2**30
NOMINAL_TOLERANCE = 0.03
"""Relative tolerance, since a device with nominally 80 GiB reports 79.6 GiB."""
_BARE_LIMIT = 2**20
_NAME = re.compile(
    r"(?:^|[/-])(?:mig-)?(?P<size>(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]{0,3}gb)"
    r"(?P<attributes>(?:(?:\+|\.|-plus-)(?!shared)[a-z]+|-me)*)(?:[-.]shared)?$"
)
_ATTRIBUTE = re.compile(r"-plus-|[+.]|(?=-me)")


def exact_quantity(text: str | float) -> Fraction:
    """Return the exact number of a quantity, which may be a plain number, as in YAML.

    Accepts signs, `.5`, `5.`, binary and decimal suffixes down to `n`, and exponents with a sign. Raises ValueError for
    anything else.
    """
    written = text if isinstance(text, str) else repr(text)
    match = None if isinstance(text, bool) else _QUANTITY.fullmatch(written)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write a number, optionally with k, M, G, T, Ki, Mi, Gi or Ti")
    sign, number, exponent, unit = match.groups()
    exact = Fraction(number.rstrip(".")) * Fraction(10) ** int(exponent or 0) * _UNITS[unit or ""]
    return -exact if sign == "-" else exact


def parse_quantity(text: str) -> int:
    """Return the number, rounded up to an integer; raises ValueError for malformed text and negative numbers."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[1] == "-":
        raise ValueError(f"{text!r} is not a quantity: write 0 or more, optionally with k, M, G, T, Ki, Mi, Gi or Ti")
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


def parse_duration(text: str) -> float:
    """Return the seconds in a text such as `1m30s`, or `0` without a unit; raises ValueError for anything else."""
    if text == "0":
        return 0.0
    seconds, end = 0.0, 0
    while part := _PART.match(text, end):
        seconds += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    if not text or end != len(text):
        raise ValueError(
            f"{text!r} is not a duration: write numbers with a unit (ns, us, ms, s, m, h), such as '50ms' or '1m30s'"
        )
    return seconds


def duration_setting(name: str, text: str, *, positive: bool = True) -> float:
    """Return the duration of a setting in seconds; raises a ValueError with the name of the setting."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if positive and seconds <= 0:
        raise ValueError(f"{name} is {text!r}: write a duration above 0")
    return seconds


def parse_memory(value: str | float) -> int:
    """Return the bytes of a quantity such as `40Gi`; a plain number below 2^20 is in GiB.

    Raises ValueError for anything else, including zero and negative numbers.
    """
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
        size = parse_quantity(value.strip())
    else:
        number = float(value)
        if not 0 < number < 2**63:
            raise ValueError(f"{value} is not a memory size: write a quantity such as 40Gi, or a number of GiB above 0")
        size = round(number * GIB) if number < _BARE_LIMIT else round(number)
    if size < 1:
        raise ValueError(f"{value!r} is not a memory size: write a quantity such as 40Gi, or a number of GiB above 0")
    return size


def gib_text(size_bytes: float) -> str:
    """Return a size for messages: `79.65 GiB`."""
    return f"{size_bytes / GIB:.4g} GiB"


def memory_suffices(have_bytes: float, need_bytes: float) -> bool:
    """Return whether the size suffices, within the tolerance."""
    return have_bytes >= need_bytes * (1 - NOMINAL_TOLERANCE)


def canonical_mig_name(text: str) -> str | None:
    """Return `3g.20gb`, `1g.5gb+me` or `1c.3g.20gb` for any spelling of a MIG profile; None for any other text.

    Spellings are the plain name, resource names (`nvidia.com/mig-1g.5gb.me`, `mig.das.com/1g.5gb-plus-me`,
    `instaslice.redhat.com/mig-3g.20gb`) and products (`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`), with or without the suffix
    `-SHARED` or `.shared`. `1g.5gb-me` is a profile without media extensions.
    """
    found = _NAME.search(text.strip().lower())
    if found is None:
        return None
    attributes = [name for name in _ATTRIBUTE.split(found["attributes"]) if name]
    added = ".".join(name for name in attributes if not name.startswith("-"))
    removed = "".join(name for name in attributes if name.startswith("-"))
    return f"{found['size']}{added and '+' + added}{removed}"


def compute_slices(name: str) -> int | None:
    """Return the compute slices of a canonical name: 3 of `3g.20gb`, 1 of `1c.3g.20gb`."""
    found = re.match(r"(\d+)[cg]\.", name)
    return int(found[1]) if found else None
