"""Finding passes: their files, what these declare, and rules that are imported when they are needed."""
