"""Profile pickers: which profiles run for a request, and what their results add up to."""
