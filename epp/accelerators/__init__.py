"""Accelerators of endpoints: facts from labels, cluster objects and declarations, merged into one tag for each."""
