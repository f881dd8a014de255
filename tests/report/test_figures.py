"""Figures are tested for what they show: the data in the artists are those of the tables."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

from dflash.report.acceptance_figures import draw_acceptance, draw_heldout, draw_positions
from dflash.report.batching_figures import (
    draw_bucket_curve,
    draw_composition,
    draw_lengths,
    draw_policies,
    length_bins,
)
from dflash.report.comparison_figures import Curves, draw_curves, draw_pareto
from dflash.report.theme import DARK, LIGHT, MAX_BINS, THEMES, Theme, canvas, line_bins, save
from dflash.report.training_figures import (
    draw_balance,
    draw_bucket_trends,
    draw_energy,
    draw_envelope,
    draw_gradient,
    draw_loss,
    draw_throughput,
)

STEPS = np.arange(1, 41)


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colors_stand_out(theme: Theme) -> None:
    assert contrast(theme.ink, theme.background) >= 7
    assert contrast(theme.bad, theme.background) >= 4.5
    # Large graphical objects need less than text; every series also has its own marker, hatch or line.
    assert min(contrast(color, theme.background) for color in theme.series) >= 1.9
    assert min(contrast(to_hex(color), theme.background) for color in theme.bucket_colors(8)) >= 1.4


# Machado, Oliveira and Fernandes, 2009: what the color-blind see, of linear RGB, at full severity.
BLIND = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def seen(color: str, kind: str) -> np.ndarray:
    """A color as the color-blind see it, in sRGB from 0 to 1."""
    parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    changed = np.clip(np.array(BLIND[kind]) @ linear, 0, 1)
    return np.where(changed <= 0.0031308, changed * 12.92, 1.055 * changed ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_the_color_blind_tell_the_first_series_apart(theme: Theme, kind: str) -> None:
    """The first three carry most figures; red and green of the same lightness would come out closer than 0.1."""
    colors = [seen(color, kind) for color in theme.series[:3]]
    apart = [float(np.linalg.norm(a - b)) for k, a in enumerate(colors) for b in colors[:k]]
    assert min(apart) >= 0.2
    red, green = seen("#b05a3c", kind), seen("#7a7a3c", kind)
    assert np.linalg.norm(red - green) < 0.2


def test_bins_keep_every_sample_and_token() -> None:
    lengths = np.array([1, 2, 3, 50, 777, 8192])
    samples = np.array([5, 1, 7, 2, 9, 4])
    edges, count, tokens = length_bins(lengths, samples)
    assert count.sum() == samples.sum() and tokens.sum() == (lengths * samples).sum()
    for k in range(len(count)):
        inside = (edges[k] < lengths) & (lengths <= edges[k + 1])
        assert count[k] == samples[inside].sum()


@pytest.mark.parametrize("only", [1, 64])
def test_one_length_is_a_histogram_too(only: int) -> None:
    _, count, _ = length_bins(np.array([only]), np.array([3]))
    assert count.sum() == 3
    draw_lengths(LIGHT, np.array([only]), np.array([3]), [only])


def test_lengths_show_all_boundaries() -> None:
    figure = draw_lengths(LIGHT, np.array([10, 100, 500]), np.array([5, 3, 2]), [128, 512])
    for ax in figure.axes:
        assert [line.get_xdata()[0] for line in ax.lines] == [128, 512]
        assert sum(ax.patches[0].get_data().values) == pytest.approx(1.0)


def test_the_curve_is_the_curve() -> None:
    figure = draw_bucket_curve(DARK, [1, 2, 3], [0.5, 0.7, 0.8], 2, {"equal widths": 0.6})
    curve, chosen, other = figure.axes[0].lines
    assert curve.get_xydata().tolist() == [[1, 0.5], [2, 0.7], [3, 0.8]]
    assert chosen.get_xdata()[0] == 2 and other.get_xydata().tolist() == [[2, 0.6]]


def test_policies_show_values_and_what_does_not_apply() -> None:
    figure = draw_policies(
        LIGHT, ["bucketed", "packed"], "packed", {"a (share)": [0.5, 0.9], "b (times)": [2.0, None]}
    )
    bars = [
        container for ax in figure.axes for container in ax.containers if isinstance(container, BarContainer)
    ]
    assert [[bar.get_width() for bar in container] for container in bars] == [[0.5, 0.9], [2.0, 0.0]]
    assert [text.get_text() for text in figure.axes[1].texts] == ["2", "does not apply"]
    assert to_hex(bars[0][1].get_facecolor()) == LIGHT.series[0] != to_hex(bars[0][0].get_facecolor())


def test_composition_stacks_to_one() -> None:
    step, bucket = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    figure = draw_composition(LIGHT, step, bucket, np.array([30.0, 10.0, 7.0, 3.0]), [64, 128])
    heights = [[bar.get_height() for bar in container] for container in figure.axes[0].containers]
    assert heights == [[0.75, 0.0], [0.25, 1.0]]


def test_loss_shows_steps_heldout_and_skipped() -> None:
    loss = np.linspace(5, 2, 40)
    loss[7] = np.nan
    figure = draw_loss(
        LIGHT,
        STEPS * 100.0,
        loss,
        (STEPS * 100.0, loss + 1),
        (np.array([2000.0]), np.array([3.3])),
        np.array([800.0]),
    )
    every, adjusted, heldout, skipped = figure.axes[0].lines
    assert every.get_ydata().tolist() == loss[np.isfinite(loss)].tolist()
    assert 800.0 not in every.get_xdata() and skipped.get_xdata()[0] == 800.0
    assert adjusted.get_ydata()[0] == 6.0 and heldout.get_xydata().tolist() == [[2000.0, 3.3]]


def test_a_long_series_is_bounded_and_keeps_its_extremes() -> None:
    series = np.random.default_rng(0).normal(size=100_000)
    series[54_321] = 99.0
    _, (ax,) = canvas(LIGHT)
    draw_envelope(ax, np.arange(100_000.0), series, LIGHT.series[0], "each step")
    assert len(ax.lines[0].get_xdata()) <= MAX_BINS
    assert ax.lines[0].get_ydata().mean() == pytest.approx(series.mean(), abs=1e-3)
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == 99.0


def test_figures_of_weeks_on_many_ranks_stay_small(tmp_path: Path) -> None:
    """Two themes, as base64, of about a dozen figures have to fit in a page of 10 MB."""
    rng = np.random.default_rng(0)
    at, step = np.arange(1500.0), np.arange(50_000.0)
    heldout = draw_heldout(LIGHT, at, rng.random(1500), [rng.random(1500) for _ in range(15)])
    watts = {f"rank {k} (target)": rng.normal(400, 20, len(step)) for k in range(16)}
    energy = draw_energy(LIGHT, step, watts, rng.random(len(step)))
    for name, figure in (("heldout", heldout), ("energy", energy)):
        assert len(save(figure, tmp_path, name)) < 1_000_000, name


def test_bins_cover_a_series_once() -> None:
    cuts = line_bins(3001)
    assert len(cuts) <= MAX_BINS
    assert [k for cut in cuts for k in range(cut.start, cut.stop)] == list(range(3001))


def test_trends_mark_what_gets_worse() -> None:
    figure = draw_bucket_trends(LIGHT, ["a", "b", "c"], [-1, 2, np.nan], [-2, 1, np.nan], [0, 3, np.nan])
    markers = [line.get_marker() for line in figure.axes[0].lines]
    assert markers[1] == "o" and markers[3] == "D"
    assert figure.axes[0].texts[0].get_text() == "too few cells"


def test_gradient_and_rate() -> None:
    norm = np.linspace(1, 2, 40)
    figure = draw_gradient(LIGHT, STEPS, norm, norm / 100, 1.0)
    assert figure.axes[0].lines[0].get_ydata().tolist() == norm.tolist()
    assert figure.axes[1].lines[0].get_ydata().tolist() == (norm / 100).tolist()
    assert figure.axes[0].yaxis.get_major_formatter()(1.0, 0) == "1"


@pytest.mark.parametrize(("low", "high", "fewest"), [(0.6, 5.0, 4), (1.2, 8.0, 3), (0.01, 90.0, 3)])
def test_a_gradient_axis_has_numbers_over_any_range(low: float, high: float, fewest: int) -> None:
    figure = draw_gradient(LIGHT, STEPS, np.geomspace(low, high, 40), np.ones(40), None)
    figure.draw_without_rendering()
    ax = figure.axes[0]
    bottom, top = ax.get_ylim()
    ticks = [*ax.yaxis.get_major_ticks(), *ax.yaxis.get_minor_ticks()]
    shown = [
        tick.label1.get_text() for tick in ticks if bottom <= tick.get_loc() <= top and tick.label1.get_text()
    ]
    assert len(set(shown)) >= fewest, shown


def test_throughput() -> None:
    figure = draw_throughput(LIGHT, STEPS, STEPS * 10.0, STEPS * 12.0)
    shown = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].lines}
    assert shown == {"padded tokens/s": (STEPS * 12.0).tolist(), "useful tokens/s": (STEPS * 10.0).tolist()}


def test_balance() -> None:
    figure = draw_balance(LIGHT, ["target 0", "drafter 1"], {"busy": [0.6, 0.9], "blocked": [0.4, 0.1]})
    widths = [[bar.get_width() for bar in container] for container in figure.axes[0].containers]
    assert np.array(widths) == pytest.approx(np.array([[0.6, 0.9], [0.4, 0.1]]))
    assert figure.axes[0].containers[1][1].get_x() == 0.9


@pytest.mark.parametrize("known", [True, False])
def test_energy_is_shown_or_said_to_be_unknown(known: bool) -> None:
    watts = np.full(40, 50.0 if known else np.nan)
    figure = draw_energy(LIGHT, STEPS, {"target 0": watts}, watts / 100)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert bool(texts) == (not known)
    assert known or "unknown" in texts[0]
    assert not known or figure.axes[0].lines[0].get_ydata().tolist() == watts.tolist()


def test_acceptance_bars_and_intervals() -> None:
    bars = {"trained": [(2.5, 2.4, 2.7), None], "prompt_lookup": [(1.2, np.nan, np.nan), (1.1, 1.0, 1.2)]}
    figure = draw_acceptance(LIGHT, ["greedy", "sampled"], bars)
    containers = [each for each in figure.axes[0].containers if isinstance(each, BarContainer)]
    assert [[bar.get_width() for bar in each] for each in containers] == [[2.5], [1.2, 1.1]]
    segments = containers[0].errorbar.lines[2][0].get_segments()
    assert segments[0][:, 0].tolist() == pytest.approx([2.4, 2.7])
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.50", "1.20", "1.10"]


def test_heldout_and_positions() -> None:
    tokens = np.array([1.0, 2.0])
    figure = draw_heldout(LIGHT, tokens, tokens + 1, [tokens / 4, tokens / 5])
    assert figure.axes[0].lines[0].get_ydata().tolist() == [2.0, 3.0]
    assert [line.get_ydata().tolist() for line in figure.axes[1].lines] == [[0.25, 0.5], [0.2, 0.4]]
    figure = draw_positions(LIGHT, {"a": (np.array([1, 2]), np.array([0.7, 0.6]))})
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 0.7], [2, 0.6]]


def test_curves_by_tokens_and_time() -> None:
    run = Curves(np.array([10.0, 20.0]), np.array([1.0, 2.0]), np.array([5.0, 4.0]), np.array([1.5, 2.0]))
    for by_time, x in ((False, [10.0, 20.0]), (True, [1.0, 2.0])):
        figure = draw_curves(LIGHT, {"a": [run], "b": [run, run]}, 20.0, by_time=by_time)
        assert [line.get_xdata().tolist() for line in figure.axes[0].lines[:3]] == [x, x, x]
        assert figure.axes[1].lines[0].get_ydata().tolist() == [1.5, 2.0]
        assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["a", "b"]


def test_pareto_outlines_the_unbeaten() -> None:
    sides = {"a": (np.array([1.0]), np.array([2.0]), True), "b": (np.array([0.5]), np.array([3.0]), False)}
    lines = draw_pareto(LIGHT, {"loss (nats)": sides}).axes[0].lines
    assert [line.get_xydata().tolist() for line in lines] == [[[1.0, 2.0]], [[0.5, 3.0]]]
    assert lines[0].get_markersize() > lines[1].get_markersize()


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_axes_are_named_in_the_themes_ink(theme: Theme) -> None:
    figure = draw_throughput(theme, STEPS, STEPS * 1.0, STEPS * 1.0)
    ax = figure.axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "tokens per second")
    assert ax.xaxis.label.get_color() == theme.ink
    assert to_hex(figure.get_facecolor()) == theme.background
    assert all(to_hex(text.get_color()) == theme.ink for text in ax.get_legend().get_texts())
