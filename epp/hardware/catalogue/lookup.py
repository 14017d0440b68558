# SPDX-License-Identifier: Apache-2.0
"""Lookup of products by the names that labels, drivers and users have for them."""

import re
from collections.abc import Iterable
from functools import lru_cache

from epp.framework.quantities import GIB, NOMINAL_TOLERANCE
from epp.hardware.catalogue.product import Product
from epp.hardware.catalogue.products import PRODUCTS

_REMEMBERED = 1024
"""Answers that are kept: a fleet has few products, and asks for them with each endpoint."""
_LONGEST_NAME = 256
_SEPARATORS = re.compile(r"[^a-z0-9.+]+")
_PART = re.compile(r"-(mig-[0-9].*|shared)$")
_SIZE = re.compile(r"(?<![a-z0-9.])([0-9]+)gi?b?(?![a-z0-9])")


def same_size(nominal_bytes: float, actual_bytes: float) -> bool:
    """Whether a device of this nominal size may report that many bytes, with GB read as GiB or as 10^9."""
    return any(
        abs(actual_bytes - nominal) <= NOMINAL_TOLERANCE * nominal
        for nominal in (nominal_bytes, nominal_bytes * 10**9 / GIB)
    )


class Catalogue:
    """Products by name."""

    def __init__(self, products: Iterable[Product] = PRODUCTS) -> None:
        self._products = tuple(products)
        self._by_name = {product.name: product for product in self._products}
        self._patterns = [
            (product, re.compile(rf"(?<![a-z0-9])(?:{product.pattern})(?![a-z0-9])")) for product in self._products
        ]
        self._remembered = lru_cache(_REMEMBERED)(self._search)

    def find(self, text: str, memory_bytes: int | None = None) -> Product | None:
        """Return the product that a text names; None for none.

        Of several sizes of a model, the size in the text decides, then `memory_bytes` of a whole device, then the order
        of the table.
        """
        return next(iter(self.meant(text, memory_bytes)), None)

    def meant(self, text: str, memory_bytes: int | None = None) -> tuple[Product, ...]:
        """Return all products that a text may name, the most likely first."""
        return self._remembered(text, memory_bytes) if len(text) <= _LONGEST_NAME else ()

    def _search(self, text: str, memory_bytes: int | None) -> tuple[Product, ...]:
        words = _words(text)
        if words in self._by_name:
            return (self._by_name[words],)
        matches = [product for product, pattern in self._patterns if pattern.search(words)]
        matches = [product for product in matches if product.model == matches[0].model]
        sizes = {int(size) * GIB for size in _SIZE.findall(words)}
        fitting = [product for product in matches if product.memory_bytes in sizes]
        if not fitting and memory_bytes:
            fitting = _nearest(matches, memory_bytes)
        fitting = fitting or matches
        return tuple([product for product in fitting if _is_variant(product, words)] or fitting)

    def extended(self, products: Iterable[Product]) -> "Catalogue":
        """Return a catalogue in which these replace those of the same name; new ones precede all others."""
        added = {product.name: product for product in products}
        new = [product for name, product in added.items() if name not in self._by_name]
        return Catalogue([*new, *(added.get(product.name, product) for product in self._products)])


def _words(text: str) -> str:
    """Return lower-case words joined by `-`, without suffixes for slices and sharing."""
    words = _SEPARATORS.sub("-", text.strip().lower()).strip("-")
    while (shorter := _PART.sub("", words)) != words:
        words = shorter
    return words


def _nearest(products: list[Product], memory_bytes: int) -> list[Product]:
    sized = [product for product in products if product.memory_bytes and same_size(product.memory_bytes, memory_bytes)]
    distances = {product.name: abs((product.memory_bytes or 0) - memory_bytes) for product in sized}
    return [product for product in sized if distances[product.name] == min(distances.values())]


def _is_variant(product: Product, words: str) -> bool:
    return bool(product.variant) and re.search(product.variant, words) is not None


CATALOGUE = Catalogue()
"""The built-in products."""
