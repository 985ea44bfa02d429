"""What can be seen of a running server."""
