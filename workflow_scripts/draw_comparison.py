"""Draw the page that lays all experiments side by side."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("experiments",)


def work(stage: Stage) -> None:
    """Write comparison.html, and its figures as SVG and PNG."""
    from dflash.report.comparison_page import draw_comparison_page

    # In the order of the config: the first one is what the others are compared with.
    settings = {name: stage.settings["experiments"][name] for name in stage.inputs["fit"]}
    draw_comparison_page(settings, stage.inputs["fit"], stage.inputs["evaluate"], stage.folder)


if __name__ == "__main__":
    run_stage(work)
