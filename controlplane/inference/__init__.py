"""The inference API: what SDKs talk to, and the gateway's side of every worker connection."""
