"""Hardware of endpoints as plugins see it: tags, arrays of their values, bounds and preferences for requests."""
