"""Connections between gateways, node agents and workers (torch-free; decision 0012).

`endpoints` says where, `security` what protects a TCP connection, `handshake` proves a shared secret, `tls` holds the
certificates, `sockets` and `streams` connect (blocking for blocks, asyncio for frames), `server` accepts.
"""
