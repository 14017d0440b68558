# SPDX-License-Identifier: Apache-2.0
"""Data sources over HTTP, and the pages of models and DCGM exporters."""
