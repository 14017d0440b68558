"""AcceleratorClasses: matching against an endpoint, and validation."""
