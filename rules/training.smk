"""Training the drafter."""


# Preflight is no input of the work: what it finds changes no weight. It only has to pass first.
rule fit:
    input:
        request="results/{experiment}/.request/fit.json",
        encode=encoded,
        build_plan="results/{experiment}/build_plan.json",
        start_from=start_for,
        preflight="results/{experiment}/run_preflight.json",
    output:
        manifest="results/{experiment}/fit.json",
    log:
        "logs/{experiment}/fit.log",
    shell:
        command("fit", "build_plan", "start_from", several=["encode"])
