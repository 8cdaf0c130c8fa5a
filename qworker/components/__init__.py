"""The worker's parts: each is one thread, or what threads hand to one another."""
