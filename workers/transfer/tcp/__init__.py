"""Blocks over TCP, for workers on several hosts: each link has a second connection, to the same port, for its blocks.

Threads with blocking sockets move them, from the owner's arena straight into the socket and out of it straight into the
reader's: neither event loop nor engine waits for a network. `wire` is the format, `owner` the prefill side, `source`
the decode side, `transport` dials and offers.
"""
