"""The evaluation of the Blink paper (MLSys 2020), repeated on the simulator and the emulator."""
