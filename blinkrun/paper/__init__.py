"""The Blink paper's evaluation, figure by figure, on the simulator."""
