"""Canvas: calls that are not made yet, and how they are joined. Modules: ``signature`` (one call)."""
