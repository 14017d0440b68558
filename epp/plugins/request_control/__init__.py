"""Request control: admission of requests, and reports on responses."""
