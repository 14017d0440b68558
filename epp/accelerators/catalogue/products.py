# SPDX-License-Identifier: Apache-2.0
"""All products, with the figures of their data sheets: whole devices, dense."""

from epp.accelerators.catalogue import amd, geforce, intel, npus, nvidia
from epp.accelerators.catalogue.product import Product

PRODUCTS: tuple[Product, ...] = (
    *nvidia.PRODUCTS,
    *geforce.PRODUCTS,
    *amd.PRODUCTS,
    *intel.PRODUCTS,
    *npus.PRODUCTS,
)
"""In order of preference for an ambiguous name: the usual variant of a model first."""
