# SPDX-License-Identifier: Apache-2.0
"""Price files, in YAML, JSON or CSV, into entries; an entry with a mistake is left out, and said with its line."""

import csv
import io
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import get_args

from epp.framework.messages import hint_at
from epp.hardware.files.rows import Row, Rows, read_rows
from epp.hardware.prices.price_list import Price, PricedUnit
from epp.runtime.followed_files import ParsedFile

_MOST_DOLLARS = 1e6
_MOST_DEVICES = 4096
_CONDITIONS = ("accelerator", "class", "instanceType", "region")
_PRICES = ("perHour", "spotPerHour")
_FIELDS = (*_CONDITIONS, "per", "devices", *_PRICES)
_FORM = "write prices: with a list of entries, such as - {accelerator: h100, perHour: 4.25}"


def read_prices(content: bytes, path: Path) -> ParsedFile[tuple[Price, ...]]:
    """Return the prices in a file; raises ValueError for a file that is no price list."""
    text = content.decode("utf-8-sig")
    is_csv = path.suffix.lower() == ".csv"
    rows, found = _csv_rows(text) if is_csv else read_rows(text, form=_FORM, key="prices", beside=_beside)
    problems = list(found)
    entries: list[Price] = []
    first_lines: dict[tuple[str, ...], int] = {}
    for row in rows:
        try:
            entry = _entry(row)
        except ValueError as error:
            problems.append(f"line {row.line}: {error}")
            continue
        repeated = _repeated(entry, first_lines)
        if repeated:
            problems.append(f"line {entry.line}: {repeated}")
        else:
            entries.append(entry)
    return ParsedFile(tuple(entries), len(entries), tuple(problems))


def _beside(key: str, value: object) -> str:
    """Return what is wrong with a key beside `prices`."""
    if key != "currency":
        return f"{key!r:.40} is unknown: {hint_at(key, ('prices', 'currency'))}"
    if value != "USD":
        return f"currency is {value!r:.40}: convert the prices to US dollars, and write USD or leave it out"
    return ""


def _csv_rows(text: str) -> Rows:
    reader = csv.reader(io.StringIO(text), skipinitialspace=True, strict=True)
    lines = ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
    try:
        table = [(line, cells) for line, cells in lines if any(cells) and not cells[0].startswith("#")]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: not CSV: {error}") from error
    if not table:
        raise ValueError(f"it is empty: begin with a line of column names, of {', '.join(_FIELDS)}")
    (at, names), *rest = table
    for name in names:
        if name not in _FIELDS or names.count(name) > 1:
            what = "occurs twice" if name in _FIELDS else f"is unknown: {hint_at(name, _FIELDS)}"
            raise ValueError(f"line {at}: column {name!r} {what}")
    long = [f"line {line}: more cells than columns: remove a comma" for line, cells in rest if len(cells) > len(names)]
    rows = [
        Row(line, {name: cell for name, cell in zip(names, cells, strict=False) if cell})
        for line, cells in rest
        if len(cells) <= len(names)
    ]
    return Rows(tuple(rows), tuple(long))


def _entry(row: Row) -> Price:
    """Return the entry; raises ValueError with field, value and remedy."""
    fields = row.fields
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f"{name!r:.40} is unknown: {hint_at(name, _FIELDS)}")
    accelerator, accelerator_class, instance_type, region = (_text(fields, name) for name in _CONDITIONS)
    if not (accelerator or accelerator_class or instance_type):
        raise ValueError("nothing says what has this price: add accelerator, class or instanceType")
    per_hour, spot_per_hour = (_number(fields, name, _dollars) for name in _PRICES)
    if per_hour is None and spot_per_hour is None:
        raise ValueError("there is no price: add perHour, spotPerHour or both, in US dollars")
    per = fields.get("per", "machine" if instance_type else "device")
    if per not in get_args(PricedUnit):
        raise ValueError(f"per is {per!r:.40}: write device for one accelerator, or machine for all of them")
    devices = _number(fields, "devices", _count)
    if devices is not None and per != "machine":
        raise ValueError("devices counts those of a machine: write per: machine, or leave it out")
    return Price(
        line=row.line,
        accelerator=accelerator,
        accelerator_class=accelerator_class,
        instance_type=instance_type,
        region=region,
        per="machine" if per == "machine" else "device",
        devices=None if devices is None else int(devices),
        per_hour=per_hour,
        spot_per_hour=spot_per_hour,
    )


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.40}: write text, in quotes")  # noqa: TRY004  as all that is wrong with a file
    return value.strip()


def _number(fields: Mapping[str, object], name: str, check: Callable[[float], str]) -> float | None:
    """Return the number; None without one. `check` returns what to write instead of a number out of its limits."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        number = float("nan") if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except (ValueError, OverflowError):
        number = float("nan")
    if remedy := check(number):
        raise ValueError(f"{name} is {value!r:.40}: {remedy}")
    return number


def _dollars(number: float) -> str:
    if not isfinite(number) or number < 0:
        return "write US dollars an hour, a number of 0 or more without a currency sign"
    return "" if number <= _MOST_DOLLARS else f"write US dollars an hour, {_MOST_DOLLARS:,.0f} at most"


def _count(number: float) -> str:
    ok = isfinite(number) and number == int(number) and 1 <= number <= _MOST_DEVICES
    return "" if ok else f"write the number of accelerators of the machine, a whole one from 1 to {_MOST_DEVICES}"


def _repeated(entry: Price, first_lines: dict[tuple[str, ...], int]) -> str:
    """Return a sentence if an entry before has a price under the same conditions; note those of this one otherwise."""
    conditions = (entry.accelerator, entry.accelerator_class, entry.instance_type, entry.region)
    prices = zip(_PRICES, (entry.per_hour, entry.spot_per_hour), strict=True)
    keys = [(*map(str.lower, conditions), name) for name, price in prices if price is not None]
    for key in keys:
        if key in first_lines:
            return f"{entry.title} has {key[-1]} in line {first_lines[key]} already, which counts: remove one of them"
    first_lines.update(dict.fromkeys(keys, entry.line))
    return ""
