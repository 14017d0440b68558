"""Files of cluster objects: reading them, and keeping the last good version of each object."""
