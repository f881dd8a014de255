"""The pages: on the data, on an experiment, on all experiments."""


rule draw_data_report:
    input:
        request="results/{experiment}/.request/draw_data_report.json",
        report_data="results/{experiment}/report_data.json",
    output:
        manifest="results/{experiment}/draw_data_report.json",
        page=report(
            "results/{experiment}/draw_data_report/data.html",
            caption="../report/data.rst",
            category="Data",
            labels={"experiment": "{experiment}"},
        ),
    log:
        "logs/{experiment}/draw_data_report.log",
    shell:
        command("draw_data_report", "report_data")


rule draw_report:
    input:
        request="results/{experiment}/.request/draw_report.json",
        report_data="results/{experiment}/report_data.json",
        measure_lengths="results/{experiment}/measure_lengths.json",
        choose_boundaries="results/{experiment}/choose_boundaries.json",
        build_plan="results/{experiment}/build_plan.json",
        run_preflight="results/{experiment}/run_preflight.json",
        fit="results/{experiment}/fit.json",
        evaluate="results/{experiment}/evaluate.json",
        export_drafter="results/{experiment}/export_drafter.json",
    output:
        manifest="results/{experiment}/draw_report.json",
        page=report(
            "results/{experiment}/draw_report/report.html",
            caption="../report/experiment.rst",
            category="Experiments",
            labels={"experiment": "{experiment}"},
        ),
    log:
        "logs/{experiment}/draw_report.log",
    shell:
        command(
            "draw_report",
            "report_data",
            "measure_lengths",
            "choose_boundaries",
            "build_plan",
            "run_preflight",
            "fit",
            "evaluate",
            "export_drafter",
        )


rule draw_comparison:
    input:
        request="results/.request/draw_comparison.json",
        build_plan=expand("results/{experiment}/build_plan.json", experiment=SETTINGS),
        fit=expand("results/{experiment}/fit.json", experiment=SETTINGS),
        evaluate=expand("results/{experiment}/evaluate.json", experiment=SETTINGS),
    output:
        manifest="results/draw_comparison.json",
        page=report(
            "results/draw_comparison/comparison.html",
            caption="../report/comparison.rst",
            category="Comparison",
        ),
    log:
        "logs/draw_comparison.log",
    shell:
        command("draw_comparison", several=["build_plan", "fit", "evaluate"])
