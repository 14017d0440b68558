# SPDX-License-Identifier: Apache-2.0
"""Price lists of users: files with prices of accelerators and machines, and the prices of one endpoint in them."""

from epp.hardware.prices.price_list import Place, Price, PriceList
from epp.hardware.prices.reading import read_prices

__all__ = ["Place", "Price", "PriceList", "read_prices"]
