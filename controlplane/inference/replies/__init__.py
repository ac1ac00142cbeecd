"""Answers in the shapes of each protocol: events of a stream, and whole bodies."""
