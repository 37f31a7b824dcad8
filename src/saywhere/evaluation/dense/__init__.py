"""Dense captioning."""
