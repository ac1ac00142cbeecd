"""Where a prompt begins to run after a prefix hit, so that it gives what a cold run gives (section 10.2).

A hit of H tokens has exact paged rows but no window rows. A row t is exact at the input of layer l if `t - l (W-1)` is
at or after the first token run again, or that is the text's first. N new tokens after the hit, P = H + N:

- *stored rows*: with the encoder-side window rows (layers 0..cut) of the W-1 positions before `P - W` at hand, run from
  there: at most the last W tokens of the hit, without rewriting their paged rows. Only for trimmed prefill;
- *recompute*, prefill trimmed: the new rows must be exact at the input of layer `cut`, where the last paged rows are
  written, and the tail (the last W) at its output: the last `max(cut (W-1), (cut+1)(W-1) + W - N)` tokens of the hit;
- *recompute*, prefill not trimmed: the last row must be exact after all L layers, hence the rows that its windows and
  those of later tokens hold: the last `max(cut (W-1), L (W-1) + 1 - N)` tokens of the hit.

Lengths are rounded up to even, so that no group of two tokens is cut.
"""

from workers.models.deepseek_v41.config import DeepseekV41Config


def replay_start(config: DeepseekV41Config, hit: int, prompt: int, *, stored_rows: bool, trimmed: bool = True) -> int:
    """The position to run from again after a hit of `hit` of `prompt` tokens."""
    if not 0 <= hit < prompt:
        raise ValueError(f"a hit of {hit} of {prompt} tokens leaves no token to run")
    window, new = config.sliding_window, prompt - hit
    if stored_rows:
        if not trimmed:
            raise ValueError("layers after the last KV source would need window rows that nobody stores")
        return min(hit, max(0, prompt - window))
    reach = window - 1
    late = (config.cut + 1) * reach + window if trimmed else config.num_hidden_layers * reach + 1
    exact = max(config.cut * reach, late - new, 0)
    return max(0, hit - exact - exact % 2)


def sidecar_span(config: DeepseekV41Config, hit: int, prompt: int) -> tuple[int, int]:
    """The positions [first, last) whose encoder-side window rows a resume from stored rows needs."""
    last = replay_start(config, hit, prompt, stored_rows=True)
    return max(0, last - (config.sliding_window - 1)), last
