"""See docs/architecture.md for where this layer stands."""
