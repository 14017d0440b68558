"""Deciders: whether a stage of a disaggregated request is worth a leg of its own."""
