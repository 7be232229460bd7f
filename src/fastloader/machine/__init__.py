"""The machine and this process's place in it: CPUs, memory, limits, ranks, time used."""
