"""The KV store: prefixes that outlive requests, processes and hosts (torch-free; decision 0009).

`Store` is what workers use, `RetentionPolicy` what the control plane publishes; the manual is
`docs/operations/kv-store.md`.
"""
