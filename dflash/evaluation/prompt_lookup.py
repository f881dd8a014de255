"""The baseline that every user should see: draft by looking up the last tokens earlier in the same text.

Prompt lookup decoding (transformers' `prompt_lookup_num_tokens`, vLLM's n-gram method): find the latest earlier
place where the last n tokens stand and propose what followed there. It costs nothing and has learned nothing.
"""

import numpy as np

SEARCHED_NGRAMS = (3, 2, 1)
"""Lengths that are tried, the longest first."""


def look_up(text: np.ndarray, num_tokens: int) -> np.ndarray:
    """Propose the next tokens of a text.

    Args:
        text: int64 tokens so far, at least one.
        num_tokens: how many to propose.

    Returns:
        int64 [num_tokens]. What follows the latest earlier occurrence of the last 3, else 2, else 1 tokens; it runs on
        into the proposal itself where it reaches the end of the text. Without any occurrence the last token, repeated.
    """
    start = len(text)
    for length in SEARCHED_NGRAMS:
        place = _latest_before_end(text, length)
        if place is not None:
            start = place + length
            break
    proposal = np.concatenate([text, np.empty(num_tokens, dtype=np.int64)])
    for offset in range(num_tokens):
        source = start + offset
        proposal[len(text) + offset] = proposal[source] if start < len(text) else text[-1]
    return proposal[len(text) :]


def _latest_before_end(text: np.ndarray, length: int) -> int | None:
    """Where the last `length` tokens stand for the last time before the end."""
    if len(text) <= length:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(text, length)
    found = np.flatnonzero((windows[:-1] == text[-length:]).all(axis=1))
    return int(found[-1]) if len(found) else None
