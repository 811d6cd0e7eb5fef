"""The launcher: starts the ranks of a job over MPI, watches them, and says why a job failed.

Standard library and blinkrun's base modules only: starting a job must not load an MPI library, a
framework or numpy. Parts that decide (`outcome`, `mpiexec`, `output`, `slots`, `forward`, `cli`)
are functions of values; `process`, `control` and `agent` do the I/O.
"""
