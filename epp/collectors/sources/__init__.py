"""Data sources over HTTP, and the pages of models and DCGM exporters."""
