"""Moving a request's blocks and state from a prefill worker to a decode worker (torch-free; decision 0005).

`holder` is the prefill side, `puller` the decode side; `base` is the interface of what moves bytes, `shared_memory` its
implementation for one host, `deadlines` every wait.
"""
