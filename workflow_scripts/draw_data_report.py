"""Draw the page on the data."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ()


def work(stage: Stage) -> None:
    """Write data.html, and its figures as SVG and PNG."""
    from dflash.report.data_page import draw_data_page

    draw_data_page(stage.inputs["report_data"], stage.folder)


if __name__ == "__main__":
    run_stage(work)
