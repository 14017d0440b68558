# SPDX-License-Identifier: Apache-2.0
"""Quantities, durations, memory sizes and MIG profile names, as files and labels spell them."""

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
"""Relative tolerance: a device with nominally 80 GiB reports 79.6."""
_BARE_LIMIT = 2**20
_NAME = re.compile(
    r"(?:^|[/-])(?:mig-)?(?P<size>(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]{0,3}gb)"
    r"(?P<attributes>(?:(?:\+|\.|-plus-)(?!shared)[a-z]+|-me)*)(?:[-.]shared)?$"
)
_ATTRIBUTE = re.compile(r"-plus-|[+.]|(?=-me)")


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
    """Return the number, rounded up to a whole one; raises ValueError for malformed text and negative numbers."""
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


def parse_duration(text: str) -> float:
    """Return seconds: the sum of numbers with a unit each, or a bare `0`; raises ValueError for anything else."""
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
    """Return the duration in seconds of a setting; raises ValueError with its name."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if positive and seconds <= 0:
        raise ValueError(f"{name} is {text!r}: write a duration above 0")
    return seconds


def parse_memory(value: str | float) -> int:
    """Return bytes: of a quantity such as `40Gi`, or of a plain number below 2^20, which is in GiB.

    Raises ValueError for anything else, zero and negative numbers included.
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
    """Return `3g.20gb`, `1g.5gb+me` or `1c.3g.20gb` for any spelling; None for any other text.

    Spellings are the bare name, resource names (`nvidia.com/mig-1g.5gb.me`, `mig.das.com/1g.5gb-plus-me`,
    `instaslice.redhat.com/mig-3g.20gb`) and products (`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`), all of these also with
    the suffix `-SHARED` or `.shared`. `1g.5gb-me` is a profile without media extensions.
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
