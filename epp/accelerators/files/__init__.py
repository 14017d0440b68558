"""Files of cluster objects, and the last good version of each object in them."""
