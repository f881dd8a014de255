"""Export the trained drafter to the layouts that serving engines load."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("export",)


def work(stage: Stage) -> None:
    """Read what `fit` left, write `zlab/` and `speculators/`, and say what engines do differently."""
    import torch

    from dflash.model.drafter_files import load_drafter, write_json
    from dflash.model.speculators import export_speculators
    from dflash.model.zlab import export_zlab

    settings = stage.settings["export"]
    exporters = {"zlab": export_zlab, "speculators": export_speculators}
    config, facts, weights = load_drafter(stage.inputs["fit"])
    notices: list[str] = []
    for layout in settings["formats"]:
        notices += exporters[layout](
            stage.folder / layout, config, facts, weights, getattr(torch, settings["dtype"])
        )
    for notice in dict.fromkeys(notices):
        print(f"export: {notice}")
    write_json(
        stage.folder / "export.json",
        {"formats": settings["formats"], "notices": list(dict.fromkeys(notices))},
    )


if __name__ == "__main__":
    run_stage(work, publish_all=True)
