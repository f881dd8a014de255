"""From lengths to the batches of every epoch."""


rule measure_lengths:
    input:
        request="results/{experiment}/.request/measure_lengths.json",
        encode=encoded,
    output:
        manifest="results/{experiment}/measure_lengths.json",
    log:
        "logs/{experiment}/measure_lengths.log",
    shell:
        command("measure_lengths", several=["encode"])


rule choose_boundaries:
    input:
        request="results/{experiment}/.request/choose_boundaries.json",
        measure_lengths="results/{experiment}/measure_lengths.json",
    output:
        manifest="results/{experiment}/choose_boundaries.json",
    log:
        "logs/{experiment}/choose_boundaries.log",
    shell:
        command("choose_boundaries", "measure_lengths")


rule build_plan:
    input:
        request="results/{experiment}/.request/build_plan.json",
        measure_lengths="results/{experiment}/measure_lengths.json",
        choose_boundaries="results/{experiment}/choose_boundaries.json",
    output:
        manifest="results/{experiment}/build_plan.json",
    log:
        "logs/{experiment}/build_plan.log",
    shell:
        command("build_plan", "measure_lengths", "choose_boundaries")
