"""The worker process around an engine: connections, the engine's thread, fan-out of tokens, lease and telemetry."""
