"""From bytes to requests and from frames to bytes on time."""
