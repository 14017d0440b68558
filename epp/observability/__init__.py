"""What the picker tells of itself: metrics and logs."""
