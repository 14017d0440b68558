"""Token counts: the tokens of a prompt, and those that it adds to an endpoint."""
