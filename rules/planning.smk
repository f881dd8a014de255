"""What can be known before an expensive run starts."""


rule run_preflight:
    input:
        request="results/{experiment}/.request/run_preflight.json",
        build_plan="results/{experiment}/build_plan.json",
    output:
        manifest="results/{experiment}/run_preflight.json",
    log:
        "logs/{experiment}/run_preflight.log",
    shell:
        command("run_preflight", "build_plan")


rule measure_rates:
    input:
        request="results/{experiment}/.request/measure_rates.json",
        encode=encoded,
        build_plan="results/{experiment}/build_plan.json",
    output:
        manifest="results/{experiment}/measure_rates.json",
    log:
        "logs/{experiment}/measure_rates.log",
    shell:
        command("measure_rates", "build_plan", several=["encode"])
