"""What is asked of the machine: memory, files, child processes, threads, the processor."""
