"""The final evaluation: every drafter on held-out prompts, greedy and sampled, beside plain decoding.

The tables' columns (read by the report):

- `acceptance`: drafter, temperature, prompt_set, definition, value, lower, upper, num_tokens, num_forwards, counted_share;
- `positions`: drafter, temperature, prompt_set, slot, share, conditional;
- `decodes`: prompt, text, pieces, runs, identical, prompt_set;
- `speed`: drafter, temperature, seconds, tokens_per_second, speed_up (measured; in no key).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash.evaluation.acceptance import CUT_NGRAM, DEFINITION, by_position, first_repeat, pooled
from dflash.evaluation.decoding import BlockDrafter, Decoded, Limits, Timed, Verifier, decode

WHOLE = DEFINITION
CUT = f"{DEFINITION}; up to the first repeated {CUT_NGRAM}-gram of the target's greedy text"


@dataclass(frozen=True)
class Prompts:
    """Held-out prompts: token ids, and the name of the set that each belongs to."""

    tokens: list[list[int]]
    sets: list[str]


@dataclass(frozen=True)
class Measured:
    """Decoded texts by (drafter, temperature), and plain ones by temperature."""

    plain: dict[float, Timed]
    speculative: dict[tuple[str, float], Timed]


def decode_all(
    target: Verifier,
    drafters: Mapping[str, BlockDrafter],
    prompts: Prompts,
    temperatures: Sequence[float],
    limits: Callable[[float], Limits],
    batch_size: int,
) -> Measured:
    """Decode the prompts plainly and with every drafter at every temperature; shows a line for each."""
    plain, speculative = {}, {}
    for temperature in temperatures:
        plain[temperature] = decode(target, None, prompts.tokens, limits(temperature), batch_size)
        _say("plain", temperature, plain[temperature])
        for name, drafter in drafters.items():
            timed = decode(target, drafter, prompts.tokens, limits(temperature), batch_size)
            speculative[name, temperature] = timed
            _say(name, temperature, timed)
    return Measured(plain, speculative)


def _say(name: str, temperature: float, timed: Timed) -> None:
    steps = [step for each in timed.decoded for step in each.steps]
    mean = sum(steps) / len(steps) if steps else float("nan")
    print(
        f"{name}, temperature {temperature:g}: {mean:.2f} tokens a forward, {timed.seconds:.1f} s", flush=True
    )


def acceptance_rows(measured: Measured, prompts: Prompts, seed: int) -> list[dict[str, Any]]:
    """Acceptance of every drafter, temperature and prompt set, whole; greedy texts also cut at their first loop."""
    rows = []
    for (name, temperature), timed in measured.speculative.items():
        for prompt_set in dict.fromkeys(prompts.sets):
            chosen = [number for number, each in enumerate(prompts.sets) if each == prompt_set]
            texts = [timed.decoded[number] for number in chosen]
            ends = {WHOLE: [len(each.tokens) for each in texts]}
            if temperature == 0:
                ends[CUT] = [first_repeat(measured.plain[0.0].decoded[number].tokens) for number in chosen]
            for definition, places in ends.items():
                got = asdict(pooled([each.steps for each in texts], places, seed=seed))
                rows.append(
                    {
                        "drafter": name,
                        "temperature": temperature,
                        "prompt_set": prompt_set,
                        "definition": definition,
                        "value": got.pop("length"),
                        **got,
                    }
                )
    return rows


def position_rows(
    measured: Measured, prompts: Prompts, block_sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Acceptance by slot of every drafter, temperature and prompt set."""
    rows = []
    for (name, temperature), timed in measured.speculative.items():
        for prompt_set in dict.fromkeys(prompts.sets):
            steps = [
                each.steps for each, of in zip(timed.decoded, prompts.sets, strict=True) if of == prompt_set
            ]
            shares, conditionals = by_position(steps, block_sizes[name])
            for slot, (share, conditional) in enumerate(zip(shares, conditionals, strict=True), start=1):
                rows.append(
                    {
                        "drafter": name,
                        "temperature": temperature,
                        "prompt_set": prompt_set,
                        "slot": slot,
                        "share": float(share),
                        "conditional": float(conditional),
                    }
                )
    return rows


def speed_rows(measured: Measured) -> list[dict[str, Any]]:
    """Seconds and speed-up against plain decoding of the same run, batch and machine."""
    rows = []
    for (name, temperature), timed in measured.speculative.items():
        plain = measured.plain[temperature]
        tokens = sum(len(each.tokens) for each in timed.decoded)
        rows.append(
            {
                "drafter": name,
                "temperature": temperature,
                "seconds": timed.seconds,
                "tokens_per_second": tokens / timed.seconds,
                "speed_up": plain.seconds / timed.seconds,
            }
        )
    return rows


def decode_rows(
    plain: Sequence[Decoded],
    speculative: Sequence[Decoded],
    prompts: Prompts,
    to_text: Callable[[list[int]], str],
) -> list[dict[str, Any]]:
    """Every prompt's text with the runs that one forward committed, the prefill's token first."""
    rows = []
    for prompt, prompt_set, ours, theirs in zip(
        prompts.tokens, prompts.sets, speculative, plain, strict=True
    ):
        runs, place = [1], 1
        for step in ours.steps:
            runs.append(min(step, len(ours.tokens) - place))
            place += step
        pieces, place = [], 0
        for run in runs:
            pieces.append(to_text(ours.tokens[place : place + run]))
            place += run
        rows.append(
            {
                "prompt": to_text(prompt),
                "text": to_text(ours.tokens),
                "pieces": pieces,
                "runs": runs,
                "identical": ours.tokens == theirs.tokens,
                "prompt_set": prompt_set,
            }
        )
    return rows
