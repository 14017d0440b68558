"""The parts of cluster objects that say something about accelerators: one module for each API."""
