"""The command line: one file per command. Nobody imports it."""
