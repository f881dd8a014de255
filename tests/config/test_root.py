"""A mistake in the config is one line that names the key, the value and what is allowed."""

import pytest

from dflash.config.root import resolve


def test_the_empty_config_is_the_default() -> None:
    experiment, settings = resolve({})
    assert experiment == "default"
    assert list(settings) == ["default"]
    assert settings["default"].target == "demo"


def test_an_experiment_changes_only_what_it_names() -> None:
    raw = {
        "batching": {"seed": 3, "budget_tokens": 2048},
        "experiments": [{"name": "default"}, {"name": "six", "change": {"batching": {"num_buckets": 6}}}],
    }
    _, settings = resolve(raw)
    assert settings["six"].batching == settings["default"].batching.model_copy(update={"num_buckets": 6})
    assert settings["six"].batching.seed == 3
    assert settings["six"].data == settings["default"].data


def test_a_list_is_replaced_not_merged() -> None:
    change = {"data": {"sources": [{"name": "mine", "location": "x.jsonl"}]}}
    _, settings = resolve({"experiments": [{"name": "default", "change": change}]})
    assert [source.name for source in settings["default"].data.sources] == ["mine"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            {"batching": {"num_bukets": 3}},
            "batching.num_bukets is not a setting; did you mean 'num_buckets'?",
        ),
        ({"bathcing": {}}, "bathcing is not a setting; did you mean 'batching'?"),
        (
            {"training": {"learning_rate": "1e-4"}},
            "training.learning_rate is '1e-4': input should be a valid number",
        ),
        (
            {"training": {"num_steps": 0}},
            "training.num_steps is 0: input should be greater than or equal to 1",
        ),
        ({"batching": {"policy": "sort"}}, "batching.policy is 'sort': input should be 'bucketed'"),
        (
            {"batching": {"boundaries": [64, 64]}},
            r"batching.boundaries is \[64, 64\]; the bounds must be positive",
        ),
        ({"drafter": {"taps": [3, 1]}}, r"drafter.taps is \[3, 1\]; layer numbers must be"),
        ({"data": {"sources": []}}, "data.sources is "),
        (
            {"data": {"sources": [{"name": "a", "location": "x"}] * 2}},
            "data.sources: the name 'a' stands twice",
        ),
        ({"data": {"sources": [{"name": "a", "locatoin": "x"}]}}, "did you mean 'location'?"),
        (
            {"experiments": [{"name": "default"}, {"name": "default"}]},
            "experiments: the name 'default' stands twice",
        ),
        ({"experiment": "none"}, "experiment is 'none', which experiments does not list"),
        (
            {"experiments": [{"name": "default", "change": {"batching": {"polcy": "sorted"}}}]},
            "experiments.default.change.batching.polcy is not a setting; did you mean 'policy'?",
        ),
        ({"runtime": {"topology": "targets: 7"}}, "runtime.topology is 'targets: 7'"),
    ],
)
def test_a_mistake_is_named(raw: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resolve(raw)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        resolve({"batching": {"num_bukets": 3}, "training": {"num_steps": 0}})
    assert len(str(caught.value).splitlines()) == 2


def test_settings_are_frozen() -> None:
    _, settings = resolve({})
    with pytest.raises(ValueError, match="frozen"):
        settings["default"].batching.seed = 1
