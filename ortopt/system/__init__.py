"""What is asked of the machine: memory, temporary files, child processes, the garbage collector, what is installed."""
