# SPDX-License-Identifier: Apache-2.0
"""Price lists of users: files with prices of accelerators and machines, and the prices of one endpoint."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from epp.framework.plain_yaml import Row, Rows, read_rows
from epp.framework.suggestions import hint_at
from epp.hardware.catalogue import CATALOGUE, Catalogue, Product
from epp.hardware.facts.merge import Facts, Rank
from epp.runtime.followed_files import ParsedFile

PricedUnit: TypeAlias = Literal["device", "machine"]
"""One whole accelerator, or a machine with all of its accelerators."""
_MOST_DOLLARS = 1e6
_MOST_DEVICES = 4096
_CONDITIONS = ("accelerator", "class", "instanceType", "region")
_PRICES = ("perHour", "spotPerHour")
_FIELDS = (*_CONDITIONS, "per", "devices", *_PRICES)
_FORM = "write prices: with a list of entries, such as - {accelerator: h100, perHour: 4.25}"


class Price(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Prices in US dollars per hour, and conditions for endpoints, which must all hold."""

    line: int
    """Line of the file, for messages."""
    accelerator: str = ""
    """Product or model in any spelling of the catalogue: `h100`, `NVIDIA-A100-SXM4-80GB`."""
    accelerator_class: str = msgspec.field(default="", name="class")
    instance_type: str = ""
    """Machine type, such as `p5.48xlarge`."""
    region: str = ""
    """Empty for all regions."""
    per: PricedUnit = "device"
    devices: int | None = None
    """Accelerators of a machine; None for the number according to its type or node."""
    per_hour: float | None = None
    """On-demand price."""
    spot_per_hour: float | None = None

    @property
    def title(self) -> str:
        """The conditions, for provenance: `p5.48xlarge in us-east-1`."""
        named = f"AcceleratorClass {self.accelerator_class}" if self.accelerator_class else ""
        what = " with ".join(text for text in (self.instance_type, named, self.accelerator) if text)
        return f"{what} in {self.region}" if self.region else what


class PriceQuery(msgspec.Struct, frozen=True, kw_only=True):
    product: Product | None = None
    names: tuple[str, ...] = ()
    """Product and model in the spelling of their sources."""
    classes: tuple[str, ...] = ()
    """AcceleratorClasses that match, the primary one first."""
    instance_type: str = ""
    region: str = ""
    devices: int | None = None
    """Whole accelerators of the machine; None if unknown."""


class _Terms(NamedTuple):
    price: Price
    products: frozenset[str]
    """Product names; empty for an accelerator that is not in the catalogue."""

    def fits(self, query: PriceQuery) -> bool:
        """Return whether all conditions except the region hold."""
        price = self.price
        return (
            (not price.instance_type or price.instance_type.lower() == query.instance_type.lower())
            and (not price.accelerator_class or price.accelerator_class in query.classes)
            and (
                not price.accelerator
                or (query.product is not None and query.product.name in self.products)
                or (not self.products and _key(price.accelerator) in map(_key, query.names))
            )
        )

    def rank(self, query: PriceQuery) -> tuple[object, ...]:
        """Return the sort key among matching entries, the most specific first.

        Entries with a machine type come first, then those with a class (the primary class before others), with an
        accelerator (fewer products first), and with a region.
        """
        price = self.price
        return (
            not price.instance_type,
            not price.accelerator_class,
            query.classes.index(price.accelerator_class) if price.accelerator_class else 0,
            not price.accelerator,
            len(self.products),
            not price.region,
            price.line,
        )


class PriceList:
    """Entries of a price file, found by machine type, class or accelerator."""

    def __init__(self, entries: Iterable[Price] = (), name: str = "", catalogue: Catalogue = CATALOGUE) -> None:
        """Index the entries; `name` is that of the file, for provenance."""
        self._name = name
        self._index: defaultdict[tuple[str, str], list[_Terms]] = defaultdict(list)
        """Entries by condition."""
        unknown: list[str] = []
        for price in entries:
            meant = catalogue.meant(price.accelerator) if price.accelerator else ()
            terms = _Terms(price, frozenset(product.name for product in meant))
            for key in _keys(terms):
                self._index[key].append(terms)
            if price.accelerator and not meant:
                unknown.append(
                    f"line {price.line}: {price.accelerator!r} is not a product of the catalogue: it is the price of "
                    "endpoints whose labels have this product name"
                )
        self.remarks = tuple(unknown)
        """Messages about valid entries that may be a mistake."""

    def __bool__(self) -> bool:
        return bool(self._index)

    def quote(self, query: PriceQuery) -> Facts:
        """Return the prices of one whole accelerator; each comes from the most specific entry with such a price.

        The warning is the reason that an entry for this hardware is not used.
        """
        matching = {id(each): each for key in _keys_of(query) for each in self._index.get(key, ()) if each.fits(query)}
        fitting = sorted(matching.values(), key=lambda terms: terms.rank(query))
        here = [each for each in fitting if each.price.region.lower() in {"", query.region.lower()}]
        usable = [each for each in here if self._share(each.price, query) is not None]
        remark = "" if usable else self._remark(here, fitting, query)
        found: dict[str, tuple[float, str]] = {}
        for price in (each.price for each in usable):
            for field in ("per_hour", "spot_per_hour"):
                if (dollars := getattr(price, field)) is not None and field not in found:
                    found[field] = dollars / (self._share(price, query) or 1), f"{self._name}: {price.title}"
        return Facts(
            source=self._name,
            rank=Rank.OPERATOR,
            **{field: dollars for field, (dollars, _) in found.items()},  # type: ignore[arg-type]  # fields of Facts
            sources={field: source for field, (_, source) in found.items()},
            warnings=(remark,) if remark else (),
        )

    @staticmethod
    def _share(price: Price, query: PriceQuery) -> int | None:
        return 1 if price.per == "device" else price.devices or query.devices

    def _remark(self, here: list[_Terms], anywhere: list[_Terms], query: PriceQuery) -> str:
        if here:
            return (
                f"{self._name}, line {here[0].price.line}: the price of a machine is not used, since the number of its "
                "accelerators is not known: add devices to the entry, such as devices: 8"
            )
        if anywhere:
            price = anywhere[0].price
            region = f"in {query.region}" if query.region else "without the label topology.kubernetes.io/region"
            return (
                f"{self._name} has no price for its region: line {price.line} is for {price.title}, and its node is "
                f"{region}: add an entry"
            )
        return ""


def _keys(terms: _Terms) -> Iterator[tuple[str, str]]:
    price = terms.price
    if price.instance_type:
        yield "machine", price.instance_type.lower()
    elif price.accelerator_class:
        yield "class", price.accelerator_class
    elif terms.products:
        yield from (("product", name) for name in terms.products)
    else:
        yield "name", _key(price.accelerator)


def _keys_of(query: PriceQuery) -> Iterator[tuple[str, str]]:
    yield "machine", query.instance_type.lower()
    yield from (("class", name) for name in query.classes)
    if query.product is not None:
        yield "product", query.product.name
    yield from (("name", _key(name)) for name in query.names)


def _key(name: str) -> str:
    return "-".join(name.lower().replace("_", "-").split())


def read_prices(content: bytes, path: Path) -> ParsedFile[tuple[Price, ...]]:
    """Return the prices in a file; raises ValueError for an invalid file."""
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
        if repeated := _repeated(entry, first_lines):
            problems.append(f"line {entry.line}: {repeated}")
        else:
            entries.append(entry)
    return ParsedFile(tuple(entries), len(entries), tuple(problems))


def _beside(key: str, value: object) -> str:
    """Return the error for a key next to `prices`."""
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
            what = "is repeated" if name in _FIELDS else f"is unknown: {hint_at(name, _FIELDS)}"
            raise ValueError(f"line {at}: column {name!r} {what}")
    long = [f"line {line}: more cells than columns: remove a comma" for line, cells in rest if len(cells) > len(names)]
    rows = [
        Row(line, {name: cell for name, cell in zip(names, cells, strict=False) if cell})
        for line, cells in rest
        if len(cells) <= len(names)
    ]
    return Rows(tuple(rows), tuple(long))


def _entry(row: Row) -> Price:
    fields = row.fields
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f"{name!r:.40} is unknown: {hint_at(name, _FIELDS)}")
    conditions = {name: _text(fields, name) for name in _CONDITIONS}
    if not any(conditions[name] for name in _CONDITIONS if name != "region"):
        raise ValueError("the entry has no condition: add accelerator, class or instanceType")
    prices = {name: _number(fields, name, _dollars) for name in _PRICES}
    if all(price is None for price in prices.values()):
        raise ValueError("there is no price: add perHour, spotPerHour or both, in US dollars")
    per = fields.get("per", "machine" if conditions["instanceType"] else "device")
    if per not in get_args(PricedUnit):
        raise ValueError(f"per is {per!r:.40}: write device for one accelerator, or machine for all of them")
    devices = _number(fields, "devices", _count)
    if devices is not None and per != "machine":
        raise ValueError("devices counts those of a machine: write per: machine, or leave it out")
    whole = None if devices is None else int(devices)
    return msgspec.convert({"line": row.line, "per": per, "devices": whole, **conditions, **prices}, Price)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.40}: write text, in quotes")  # noqa: TRY004  of a file
    return value.strip()


def _number(fields: Mapping[str, object], name: str, check: Callable[[float], str]) -> float | None:
    """Return the number; None if missing. `check` returns the remedy for a number out of range."""
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
    """Return an error if an earlier entry has a price for the same conditions; otherwise record this entry."""
    conditions = (entry.accelerator, entry.accelerator_class, entry.instance_type, entry.region)
    prices = zip(_PRICES, (entry.per_hour, entry.spot_per_hour), strict=True)
    keys = [(*map(str.lower, conditions), name) for name, price in prices if price is not None]
    for key in keys:
        if key in first_lines:
            return f"{entry.title} already has {key[-1]} in line {first_lines[key]}, which applies: remove one of them"
    first_lines.update(dict.fromkeys(keys, entry.line))
    return ""
