"""The simulator: runs a program over a topology on a virtual clock. Pure."""
