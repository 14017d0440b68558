"""One accelerator model for every source: what labels and objects say of hardware, decoded and merged into tags."""
