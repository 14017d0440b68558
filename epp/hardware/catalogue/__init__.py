# SPDX-License-Identifier: Apache-2.0
"""Products and machine types, with the figures of their data sheets."""

from epp.hardware.catalogue.lookup import CATALOGUE, Catalogue
from epp.hardware.catalogue.product import Product

__all__ = ["CATALOGUE", "Catalogue", "Product"]
