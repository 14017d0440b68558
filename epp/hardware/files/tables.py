# SPDX-License-Identifier: Apache-2.0
"""The tables that the tagger reads from files: products of a GPU catalogue, and a price list."""

from pathlib import Path

import msgspec

from epp.framework.plugin_status import InputState
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.catalogue.gpu_catalogue import GpuCatalogueEntry, read_gpu_catalogue, with_gpu_catalogue
from epp.hardware.prices import Price, PriceList, read_prices
from epp.runtime.followed_files import LastGoodFile

_Products = LastGoodFile[tuple[GpuCatalogueEntry, ...]]
_Prices = LastGoodFile[tuple[Price, ...]]


class Tables(msgspec.Struct, frozen=True):
    """Catalogue and prices in effect; `after` returns the next state."""

    products: _Products | None = None
    price_file: _Prices | None = None
    catalogue: Catalogue = CATALOGUE
    prices: PriceList = PriceList()

    @staticmethod
    def first(gpu_catalogue: str, prices: str) -> "Tables":
        """Return the state after the first reading of the files. Each file is optional.

        Raises ValueError for a file that cannot be read, or holds nothing of use.
        """
        return _tables(
            LastGoodFile.first(gpu_catalogue, "gpuCatalogue", read_gpu_catalogue) if gpu_catalogue else None,
            LastGoodFile.first(prices, "prices", read_prices) if prices else None,
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(file.path for file in (self.products, self.price_file) if file is not None)

    @property
    def has_prices(self) -> bool:
        """Whether any of the files has a price."""
        parsed = None if self.products is None else self.products.parsed
        return bool(self.prices) or (
            parsed is not None and any(each.cost_per_hour is not None for each in parsed.value)
        )

    @property
    def inputs(self) -> InputState:
        """Parts of the files that are not in effect."""
        files = [file for file in (self.products, self.price_file) if file is not None]
        return InputState(
            tuple(problem for file in files for problem in file.problems),
            {str(file.path): file.rejected for file in files},
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what is in effect."""
        if self.price_file is None:
            return ()
        return tuple(f"{self.price_file.path}: {each}" for each in self.prices.remarks)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not in effect, and remarks on what is."""
        return (*map(str, self.inputs.problems), *self.remarks)

    def after(self, now: float) -> "Tables":
        """Return the state after a reading of the files at a monotonic time; this one if nothing changed."""
        products = None if self.products is None else self.products.after(now)
        prices = None if self.price_file is None else self.price_file.after(now)
        if products is self.products and prices is self.price_file:
            return self
        return _tables(products, prices)


def _tables(products: _Products | None, price_file: _Prices | None) -> "Tables":
    entries: tuple[GpuCatalogueEntry, ...] = ()
    if products is not None and products.parsed is not None:
        entries = products.parsed.value
    catalogue = with_gpu_catalogue(entries, file=products.path.name) if products is not None else CATALOGUE
    prices = PriceList()
    if price_file is not None and price_file.parsed is not None:
        prices = PriceList(price_file.parsed.value, price_file.path.name, catalogue)
    return Tables(products, price_file, catalogue, prices)
