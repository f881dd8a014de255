"""A split depends on the prompt alone, and growing a share moves only into it."""

from dflash.data.split import TEST, TRAIN, VALIDATION, prompt_bytes, split_of


def test_the_response_does_not_move_a_sample() -> None:
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    answers = ([{"role": "assistant", "content": text}] for text in ("a", "b"))
    assert len({prompt_bytes([*prompt, *answer]) for answer in answers}) == 1
    assert prompt_bytes(prompt) != prompt_bytes(prompt[1:])


def test_shares_are_met_and_grow_into_themselves() -> None:
    prompts = [str(number).encode() for number in range(20_000)]
    small = [split_of(prompt, 0.1, 0.05) for prompt in prompts]
    assert abs(small.count(VALIDATION) / 20_000 - 0.1) < 0.01
    assert abs(small.count(TEST) / 20_000 - 0.05) < 0.01
    large = [split_of(prompt, 0.1, 0.2) for prompt in prompts]
    moved = {(before, after) for before, after in zip(small, large, strict=True) if before != after}
    assert moved == {(TRAIN, TEST)}
    assert all(split_of(prompt, 0.0, 0.0) == TRAIN for prompt in prompts[:100])
