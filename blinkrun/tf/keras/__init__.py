"""Data-parallel Keras: wrapped optimizers and callbacks."""
