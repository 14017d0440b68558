"""AcceleratorClasses: which of them an endpoint matches, and values of theirs that are not understood."""
