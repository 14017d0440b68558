"""An endpoint picker for LLM inference gateways: which model server, on which accelerator, and why."""
