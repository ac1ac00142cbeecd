"""Llama-family models: grouped-query attention, rotary positions, gated MLP, RMS norm."""
